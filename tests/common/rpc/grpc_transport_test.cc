// Which of its connections a transport uses.

#include "common/rpc/grpc_transport.h"

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/rpc/payload.h"
#include "common/transport/envelope.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "tests/support/process.h"

namespace recon {
namespace {

// A server that says by which stream a request came.
class StreamServer : public grpc::CallbackGenericService {
 public:
  struct Request {
    int stream = 0;  // From 0, in the order in which they were made.
    uint64_t call = 0;
  };

  StreamServer() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterCallbackGenericService(this);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~StreamServer() override { Stop(); }
  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }

  const std::string& address() const { return address_; }

  Request Take() {
    MutexLock lock(&mu_);
    REQUIRE(mu_.AwaitFor(absl::Seconds(30), [this] { return !requests_.empty(); }));
    Request request = requests_.front();
    requests_.pop_front();
    return request;
  }
  void Answer(const Request& request) {
    MutexLock lock(&mu_);
    Reactor* to = streams_[static_cast<size_t>(request.stream)];
    to->reply = BufferOf(WrapReply(request.call, ByteChain()));
    to->StartWrite(&to->reply);
  }
  void End(int stream) {
    MutexLock lock(&mu_);
    streams_[static_cast<size_t>(stream)]->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "ended"));
  }

 private:
  struct Reactor final : public grpc::ServerGenericBidiReactor {
    Reactor(StreamServer* to, int of_number) : server(to), number(of_number) { StartRead(&message); }
    void OnReadDone(bool ok) override {
      if (!ok) return;
      const auto unwrapped = Unwrap(*ChainOf(&message));
      StartRead(&message);  // The test may end the stream once it has the request.
      MutexLock lock(&server->mu_);
      server->requests_.push_back({number, unwrapped->first.call});
    }
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }

    StreamServer* const server;
    const int number;
    grpc::ByteBuffer message, reply;
  };

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* /*context*/) override {
    MutexLock lock(&mu_);
    streams_.push_back(new Reactor(this, static_cast<int>(streams_.size())));
    return streams_.back();
  }

  Mutex mu_;
  std::deque<Request> requests_ ABSL_GUARDED_BY(mu_);
  std::deque<Reactor*> streams_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

struct Sent {
  StreamServer::Request request;
  std::shared_ptr<Notification> replied = std::make_shared<Notification>();
};

// Sends a request, and waits until it has come.
Sent Send(StreamServer* server, Transport* transport) {
  Sent sent;
  transport->Call(
      ByteChain::FromString("request"),
      [replied = sent.replied](const absl::StatusOr<ByteChain>& /*reply*/) { replied->Notify(); });
  sent.request = server->Take();
  return sent;
}

}  // namespace

TEST_CASE("a request takes the connection that has the fewest under way", "[transport]") {
  StreamServer server;
  const auto window = std::make_shared<SendWindow>(/*servers=*/1, /*connections=*/3);
  const auto transport = *ConnectForFrames(server.address(), {}, 3, window);
  CHECK(Send(&server, transport.get()).request.stream == 0);
  const Sent second = Send(&server, transport.get());
  CHECK(second.request.stream == 1);
  // It is free before the other one, whose turn it would be.
  server.Answer(second.request);
  second.replied->WaitForNotification();
  CHECK(Send(&server, transport.get()).request.stream == 1);
  CHECK(Send(&server, transport.get()).request.stream == 2);
  CHECK(Send(&server, transport.get()).request.stream == 0);
}

TEST_CASE("a connection that fails does not draw the requests of those that work", "[transport]") {
  StreamServer server;
  const auto window = std::make_shared<SendWindow>(/*servers=*/1, /*connections=*/2);
  const auto transport = *ConnectForFrames(server.address(), {}, 2, window);
  const Sent first = Send(&server, transport.get());
  CHECK(first.request.stream == 0);
  CHECK(Send(&server, transport.get()).request.stream == 1);
  const absl::Time ended = Now();
  server.End(0);
  first.replied->WaitForNotification();
  const Sent next = Send(&server, transport.get());
  constexpr absl::Duration kPause = absl::Milliseconds(200);
  if (Now() - ended < kPause) CHECK(next.request.stream == 1);  // A slow machine shows nothing.
  // And then it is tried again.
  CHECK(Eventually([&] {
    const Sent sent = Send(&server, transport.get());
    if (sent.request.stream == 2) return true;
    server.Answer(sent.request);
    sent.replied->WaitForNotification();
    return false;
  }));
}

TEST_CASE("when the last connection is lost, calls that wait for the window end", "[transport]") {
  StreamServer server;
  const auto window = std::make_shared<SendWindow>(/*servers=*/1, /*connections=*/2);
  const auto transport = *ConnectForFrames(server.address(), {}, 2, window);
  std::vector<Sent> sent;
  std::vector<std::shared_ptr<Notification>> waiting;
  const size_t under_way = limits::kRequestBytesInFlight / window->frame_bytes();
  for (size_t i = 0; i < under_way; ++i) sent.push_back(Send(&server, transport.get()));
  for (int i = 0; i < 50; ++i) {
    waiting.push_back(std::make_shared<Notification>());
    transport->Call(ByteChain::FromString("waits"), [done = waiting.back()](const auto& reply) {
      CHECK(absl::IsUnavailable(reply.status()));
      done->Notify();
    });
  }
  server.Stop();
  for (const Sent& one : sent) one.replied->WaitForNotification();
  for (const auto& done : waiting) done->WaitForNotification();
  // None of them is left in the window: it admits as much as it holds.
  int admitted = 0;
  for (size_t i = 0; i < under_way; ++i) {
    window->Enter(window->NewPlace(), window->frame_bytes(), [&] { ++admitted; });
  }
  CHECK(admitted == static_cast<int>(under_way));
}

}  // namespace recon
