// Both ends of every transport: over gRPC on loopback, by one and by several connections, through shared
// memory, and over UCX, if it is built.

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "common/base/retry_hint.h"
#include "common/rpc/poller_limit.h"
#include "grpcpp/version_info.h"
#include "tests/support/holding_server.h"
#include "tests/support/process.h"

namespace recon {
namespace {

// Requests of a frame's size that are under way at once, to one server: by default elsewhere, and through
// shared memory.
constexpr size_t kUnderWay = limits::kRequestBytesInFlight / limits::kFrameTargetBytes;

}  // namespace

TEST_CASE("replies find their calls, in whatever order they come", "[exchange]") {
  HoldingServer server;
  for (const std::string& kind : Transports()) {
    INFO(kind);
    const auto transport = Connect(server, kind);
    std::vector<std::shared_ptr<Answer>> answers;
    for (size_t i = 0; i < kUnderWay; ++i) answers.push_back(Send(transport.get(), absl::StrCat("call ", i)));
    std::vector<HoldingServer::Held> held;
    for (size_t i = 0; i < kUnderWay; ++i) held.push_back(server.Take());
    for (size_t i = held.size(); i-- > 0;)
      held[i].done(ByteChain::FromString(held[i].request.ToString() + "!"));
    for (size_t i = 0; i < kUnderWay; ++i) {
      CHECK(Await(answers[i])->ToString() == absl::StrCat("call ", i, "!"));
    }
  }
}

TEST_CASE("messages of all sizes, in pieces, arrive as they were sent", "[exchange]") {
  HoldingServer server;
  // No two stretches of it are alike.
  std::string pattern(limits::kFrameBytesMax, '\0');
  std::mt19937 random(1);
  for (char& byte : pattern) byte = static_cast<char>(random());
  const auto in_pieces = [&](size_t bytes) {
    ByteChain chain;
    const size_t third = bytes / 3;
    for (const auto& [begin, size] :
         {std::pair{size_t{0}, third}, {third, third}, {2 * third, bytes - 2 * third}}) {
      chain.Append(ByteChain::FromString(pattern.substr(begin, size)));
    }
    return chain;
  };
  for (const std::string& kind : Transports()) {
    INFO(kind);
    const auto transport = Connect(server, kind);
    for (const size_t bytes : {size_t{1}, size_t{100}, (size_t{16} << 10) - 17, (size_t{16} << 10) - 16,
                               size_t{100'000}, kMiB, 2 * kMiB - 16, 2 * kMiB, limits::kFrameBytesMax}) {
      INFO(bytes);
      auto answer = std::make_shared<Answer>();
      transport->Call(in_pieces(bytes), [answer](absl::StatusOr<ByteChain> reply) {
        answer->reply = std::move(reply);
        answer->done.Notify();
      });
      HoldingServer::Held held = server.Take();
      CHECK((held.request.ToString() == pattern.substr(0, bytes)));
      held.done(in_pieces(bytes));
      const absl::StatusOr<ByteChain> reply = Await(answer);
      REQUIRE(reply.ok());
      CHECK((reply->ToString() == pattern.substr(0, bytes)));
    }
  }
}

TEST_CASE("a reply written over its request leaves the others, and what was sent, alone", "[exchange]") {
  HoldingServer server;
  for (const std::string& kind : Transports()) {
    INFO(kind);
    const auto transport = Connect(server, kind);
    // They come in one behind the other, and may share the network's buffers.
    const size_t requests = std::min<size_t>(3, kUnderWay);
    const auto text = [](size_t i) { return std::string(200'001 + i, static_cast<char>('a' + 2 * i)); };
    std::vector<ByteChain> sent;
    std::vector<std::shared_ptr<Answer>> answers;
    for (size_t i = 0; i < requests; ++i) {
      sent.push_back(ByteChain::FromString(text(i)));
      answers.push_back(std::make_shared<Answer>());
      transport->Call(sent.back(), [answer = answers.back()](absl::StatusOr<ByteChain> reply) {
        answer->reply = std::move(reply);
        answer->done.Notify();
      });
    }
    std::vector<HoldingServer::Held> held;
    for (size_t i = 0; i < requests; ++i) held.push_back(server.Take());
    const bool over = kind == "one connection" || kind == "two connections";
    for (HoldingServer::Held& one : held) {
      const std::string request = one.request.ToString();
      CHECK((request == text(request.size() - 200'001)));
      REQUIRE(one.memory.over_request == over);
      if (over) {
        ByteWriter(one.request).Write(1, request.size(), [&](uint8_t* to, size_t first, size_t count) {
          for (size_t i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(request[first + i] + 1);
        });
      }
      one.done(one.request);
    }
    for (size_t i = 0; i < requests; ++i) {
      std::string expected = text(i);
      if (over) std::fill(expected.begin(), expected.end(), static_cast<char>(expected[0] + 1));
      CHECK((Await(answers[i])->ToString() == expected));
      CHECK((sent[i].ToString() == text(i)));
    }
  }
}

TEST_CASE("errors arrive with their code, their text and when to ask again", "[exchange]") {
  for (const std::string& kind : Transports()) {
    INFO(kind);
    HoldingServer server;
    const auto transport = Connect(server, kind);
    const auto answer = Send(transport.get(), "x");
    server.Take().done(WithRetryAfter(absl::ResourceExhaustedError("too much"), absl::Milliseconds(250)));
    const absl::Status status = Await(answer).status();
    CHECK(status.code() == absl::StatusCode::kResourceExhausted);
    CHECK(status.message() == "too much");
    CHECK(RetryAfter(status) == absl::Milliseconds(250));
  }
}

TEST_CASE("what is neither taken nor answered is bounded, and waits with its sender", "[exchange]") {
  HoldingServer server;
  for (const std::string& kind : Transports()) {
    INFO(kind);
    const auto transport = Connect(server, kind);
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 40; ++i)
      answers.push_back(Send(transport.get(), std::string(limits::kFrameTargetBytes + 104, 'x')));
    CHECK(server.Settled() == kUnderWay);
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

TEST_CASE("a window that two transports share: one's requests wait for the other's", "[exchange]") {
  HoldingServer near, far;
  const auto window = std::make_shared<SendWindow>(/*servers=*/1, /*connections=*/1);
  const auto to_near = *ConnectForFrames(near.address(), {}, 1, window);
  const auto to_far = *ConnectForFrames(far.address(), {}, 1, window);
  std::vector<std::shared_ptr<Answer>> answers;
  for (size_t i = 0; i < kUnderWay + 2; ++i) {
    answers.push_back(Send(to_near.get(), std::string(limits::kFrameTargetBytes, 'n')));
  }
  const auto first = Send(to_far.get(), "first"), second = Send(to_far.get(), "second");
  CHECK(near.Settled() == kUnderWay);
  CHECK(far.Settled() == 0);
  // One that is given up while it waits is passed over.
  to_near->Abandon(answers.back()->call, absl::DeadlineExceededError("late"));
  near.Take().done(ByteChain());
  CHECK(near.Settled() == kUnderWay);
  CHECK(far.Settled() == 0);
  HoldingServer::Held held = near.Take();
  held.taken();
  CHECK(far.Take().request.ToString() == "first");
  // One that has lost its connection holds nobody up.
  to_near->Disconnect();
  CHECK(far.Take().request.ToString() == "second");
  held.done(ByteChain());
  for (const auto& answer : answers) Await(answer).IgnoreError();
}

TEST_CASE("small requests are bounded, too: their replies may be large", "[exchange]") {
  for (const std::string& kind : Transports()) {
    INFO(kind);
    HoldingServer server;
    const auto transport = Connect(server, kind);
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 100; ++i) answers.push_back(Send(transport.get(), "pull"));
    CHECK(server.Settled() == kUnderWay);
    for (int i = 0; i < 100; ++i) server.Take().done(ByteChain::FromString(std::string(kMiB, 'p')));
    for (const auto& answer : answers) CHECK(Await(answer)->size() == kMiB);
  }
}

TEST_CASE("calls end when the server goes, and go on when another one comes", "[exchange]") {
  for (const std::string& kind : Transports()) {
    INFO(kind);
    auto server = std::make_unique<HoldingServer>();
    const std::string address = server->address();
    const std::string shm_name = server->shm_name();
    const std::string ucx_address = server->ucx_address();
    const auto transport = Connect(*server, kind);
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 30; ++i) answers.push_back(Send(transport.get(), std::string(kMiB, 'x')));
    HoldingServer::Held orphan = server->Take();
    server = nullptr;
    for (const auto& answer : answers) CHECK(absl::IsUnavailable(Await(answer).status()));
    orphan.done(ByteChain());  // Too late: nobody is told.
    HoldingServer next(address, shm_name, ucx_address);
    // The channel notices within half a second.
    REQUIRE(Eventually([&] {
      const auto answer = Send(transport.get(), "again");
      while (!answer->done.HasBeenNotified() && next.Settled() == 0) {  // Settled() waits.
      }
      if (!answer->done.HasBeenNotified()) next.Take().done(ByteChain());
      return Await(answer).ok();
    }));
  }
}

TEST_CASE("a call that is abandoned ends at once, and its reply is dropped", "[exchange]") {
  for (const std::string& kind : Transports()) {
    INFO(kind);
    HoldingServer server;
    const auto transport = Connect(server, kind);
    const auto answer = Send(transport.get(), "slow");
    HoldingServer::Held held = server.Take();
    transport->Abandon(answer->call, absl::DeadlineExceededError("late"));
    CHECK(absl::IsDeadlineExceeded(Await(answer).status()));
    held.done(ByteChain());
    const auto next = Send(transport.get(), "next");
    server.Take().done(ByteChain::FromString("ok"));
    CHECK(Await(next)->ToString() == "ok");
  }
}

TEST_CASE("what is abandoned before it is sent is not sent", "[exchange]") {
  HoldingServer server;
  for (const std::string& kind : Transports()) {
    INFO(kind);
    const auto transport = Connect(server, kind);
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 20; ++i) answers.push_back(Send(transport.get(), std::string(kMiB, 'x')));
    const size_t sent = server.Settled();
    for (const auto& answer : answers) transport->Abandon(answer->call, absl::DeadlineExceededError("late"));
    for (const auto& answer : answers) CHECK(absl::IsDeadlineExceeded(Await(answer).status()));
    for (size_t i = 0; i < sent; ++i) server.Take().done(ByteChain());
    CHECK(server.Settled() == 0);
  }
}

TEST_CASE("one of gRPC's threads is enough, and sleeps no longer than it is told to", "[exchange]") {
  for (const unsigned cores : {1, 2, 64}) {
    const PollerLimit limit(cores);
    HoldingServer server;
    const auto transport = Connect(server, "two connections");
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 20; ++i) answers.push_back(Send(transport.get(), std::string(kMiB, 'x')));
    for (int i = 0; i < 20; ++i) server.Take().done(ByteChain::FromString("ok"));
    for (const auto& answer : answers) CHECK(Await(answer)->ToString() == "ok");
    if (GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51 && cores <= 2) {
      CHECK(Eventually([&] { return limit.HoldsThread(); }));
    } else {
      CHECK(!limit.HoldsThread());
    }
  }
}

TEST_CASE("a connection that is cut ends its calls, and the next call makes another", "[exchange]") {
  HoldingServer server;
  for (const std::string& kind : Transports()) {
    INFO(kind);
    const auto transport = Connect(server, kind);
    const auto answer = Send(transport.get(), "slow");
    HoldingServer::Held held = server.Take();
    transport->Disconnect();
    CHECK(absl::IsUnavailable(Await(answer).status()));
    held.done(ByteChain());
    const auto next = Send(transport.get(), "next");
    server.Take().done(ByteChain::FromString("ok"));
    CHECK(Await(next)->ToString() == "ok");
  }
}

TEST_CASE("a transport can go while calls are under way", "[exchange]") {
  for (const std::string& kind : Transports()) {
    INFO(kind);
    HoldingServer server;
    auto transport = Connect(server, kind);
    std::vector<std::shared_ptr<Answer>> answers;
    for (int i = 0; i < 20; ++i) answers.push_back(Send(transport.get(), std::string(kMiB, 'x')));
    HoldingServer::Held held = server.Take();
    transport = nullptr;
    for (const auto& answer : answers) CHECK_FALSE(Await(answer).ok());
    held.done(ByteChain());
  }
}

}  // namespace recon
