// Both ends of the gRPC transport, over loopback: GrpcTransport and ParamService.

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/retry_hint.h"
#include "common/rpc/grpc_transport.h"
#include "server/rpc/param_service.h"
#include "server/rpc/rpc_server.h"

namespace recon {
namespace {

// A server whose requests wait until the test answers them.
class HoldingServer {
 public:
  struct Held {
    std::string request;
    TakenCallback taken;
    Transport::Done done;
  };

  explicit HoldingServer(const std::string& address = "127.0.0.1:0")
      : service_([this](const ByteChain& request, TakenCallback taken, Transport::Done done) {
          MutexLock lock(&mu_);
          held_.push_back({request.ToString(), std::move(taken), std::move(done)});
        }),
        rpc_(*RpcServer::Start(address, {}, {&service_})) {}
  ~HoldingServer() {
    service_.Close();
    rpc_->Shutdown(absl::ZeroDuration());
  }

  const std::string& address() const { return rpc_->address(); }

  Held Take() {
    MutexLock lock(&mu_);
    mu_.Await([this] { return !held_.empty(); });
    Held held = std::move(held_.front());
    held_.pop_front();
    return held;
  }
  // Requests that have come in when no more come for a while.
  size_t Settled() {
    MutexLock lock(&mu_);
    size_t seen = 0;
    do {
      seen = held_.size();
    } while (mu_.AwaitFor(absl::Milliseconds(300), [&] { return held_.size() > seen; }));
    return seen;
  }

 private:
  Mutex mu_;
  std::deque<Held> held_ ABSL_GUARDED_BY(mu_);
  ParamService service_;
  std::unique_ptr<RpcServer> rpc_;
};

struct Answer {
  Notification done;
  absl::StatusOr<ByteChain> reply = ByteChain();
  uint64_t call = 0;
};

std::shared_ptr<Answer> Send(Transport* transport, const std::string& request) {
  auto answer = std::make_shared<Answer>();
  answer->call = transport->Call(ByteChain::FromString(request), [answer](absl::StatusOr<ByteChain> reply) {
    answer->reply = std::move(reply);
    answer->done.Notify();
  });
  return answer;
}

absl::StatusOr<ByteChain> Await(const std::shared_ptr<Answer>& answer) {
  answer->done.WaitForNotification();
  return answer->reply;
}

constexpr size_t kMiB = size_t{1} << 20;

}  // namespace

TEST_CASE("replies find their calls, in whatever order they come", "[exchange]") {
  HoldingServer server;
  for (const int connections : {1, 3}) {
    const auto transport = *ConnectForFrames(server.address(), {}, connections);
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 6; ++i)
      answers.push_back(Send(transport.get(), std::string(100, static_cast<char>('a' + i))));
    std::vector<HoldingServer::Held> held;
    for (int i = 0; i < 6; ++i) held.push_back(server.Take());
    for (size_t i = held.size(); i-- > 0;) held[i].done(ByteChain::FromString(held[i].request + "!"));
    for (int i = 0; i < 6; ++i) {
      CHECK(Await(answers[static_cast<size_t>(i)])->ToString() ==
            std::string(100, static_cast<char>('a' + i)) + "!");
    }
  }
}

TEST_CASE("errors arrive with their code, their text and when to ask again", "[exchange]") {
  HoldingServer server;
  const auto transport = *ConnectForFrames(server.address(), {}, 1);
  const auto answer = Send(transport.get(), "x");
  server.Take().done(WithRetryAfter(absl::ResourceExhaustedError("too much"), absl::Milliseconds(250)));
  const absl::Status status = Await(answer).status();
  CHECK(status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(status.message() == "too much");
  CHECK(RetryAfter(status) == absl::Milliseconds(250));
}

TEST_CASE("what is neither taken nor answered is bounded, and waits with its sender", "[exchange]") {
  HoldingServer server;
  for (const int connections : {1, 2}) {
    const auto transport = *ConnectForFrames(server.address(), {}, connections);
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 40; ++i) answers.push_back(Send(transport.get(), std::string(kMiB - 1000, 'x')));
    const size_t in_flight = server.Settled();
    CHECK(in_flight == limits::kRequestBytesInFlight / kMiB);
    // Those whose replies wait for others let others in: all of a synchronous step can come.
    std::vector<HoldingServer::Held> waiting;
    for (int i = 0; i < 40; ++i) {
      waiting.push_back(server.Take());
      waiting.back().taken();
    }
    for (auto& held : waiting) held.done(ByteChain());
    for (const auto& answer : answers) CHECK(Await(answer).ok());
  }
}

TEST_CASE("small requests are bounded, too: their replies may be large", "[exchange]") {
  HoldingServer server;
  const auto transport = *ConnectForFrames(server.address(), {}, 1);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 100; ++i) answers.push_back(Send(transport.get(), "pull"));
  CHECK(server.Settled() == limits::kRequestBytesInFlight / limits::kFrameTargetBytes);
  for (int i = 0; i < 100; ++i) server.Take().done(ByteChain::FromString(std::string(kMiB, 'p')));
  for (const auto& answer : answers) CHECK(Await(answer)->size() == kMiB);
}

TEST_CASE("calls end when the server goes, and go on when another one comes", "[exchange]") {
  auto server = std::make_unique<HoldingServer>();
  const std::string address = server->address();
  const auto transport = *ConnectForFrames(address, {}, 2);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 30; ++i) answers.push_back(Send(transport.get(), std::string(kMiB, 'x')));
  HoldingServer::Held orphan = server->Take();
  server = nullptr;
  for (const auto& answer : answers) CHECK(absl::IsUnavailable(Await(answer).status()));
  orphan.done(ByteChain());  // Too late: nobody is told.
  HoldingServer next(address);
  // The channel notices within half a second.
  absl::Status status = absl::UnavailableError("not asked yet");
  while (absl::IsUnavailable(status)) {
    const auto answer = Send(transport.get(), "again");
    while (!answer->done.HasBeenNotified() && next.Settled() == 0) {
    }
    if (!answer->done.HasBeenNotified()) next.Take().done(ByteChain());
    status = Await(answer).status();
  }
  CHECK(status.ok());
}

TEST_CASE("a call that is abandoned ends at once, and its reply is dropped", "[exchange]") {
  HoldingServer server;
  const auto transport = *ConnectForFrames(server.address(), {}, 1);
  const auto answer = Send(transport.get(), "slow");
  HoldingServer::Held held = server.Take();
  transport->Abandon(answer->call, absl::DeadlineExceededError("late"));
  CHECK(absl::IsDeadlineExceeded(Await(answer).status()));
  held.done(ByteChain());
  const auto next = Send(transport.get(), "next");
  server.Take().done(ByteChain::FromString("ok"));
  CHECK(Await(next)->ToString() == "ok");
}

TEST_CASE("a transport can go while calls are under way", "[exchange]") {
  HoldingServer server;
  auto transport = *ConnectForFrames(server.address(), {}, 2);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 20; ++i) answers.push_back(Send(transport.get(), std::string(kMiB, 'x')));
  HoldingServer::Held held = server.Take();
  transport = nullptr;
  for (const auto& answer : answers) CHECK_FALSE(Await(answer).ok());
  held.done(ByteChain());
}

}  // namespace recon
