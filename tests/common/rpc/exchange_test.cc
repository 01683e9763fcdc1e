// Both ends of every transport: over gRPC on loopback, by one and by several connections, through shared
// memory, and over UCX, if it is built.

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/copied_bytes.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/retry_hint.h"
#include "common/rpc/grpc_transport.h"
#include "common/rpc/param_service.h"
#include "common/rpc/poller_limit.h"
#include "common/rpc/rpc_server.h"
#include "common/shm/shm_listener.h"
#include "common/shm/shm_socket.h"
#include "common/shm/shm_transport.h"
#include "common/ucx/ucx_listener.h"
#include "common/ucx/ucx_transport.h"
#include "grpcpp/version_info.h"
#include "tests/support/process.h"

namespace recon {
namespace {

int servers_made = 0;

// A server whose requests wait until the test answers them.
class HoldingServer {
 public:
  struct Held {
    ByteChain request;  // In place.
    TakenCallback taken;
    Transport::Done done;
    ReplyMemory memory;  // Shared memory's only.
  };

  explicit HoldingServer(const std::string& address = "127.0.0.1:0", const std::string& shm_name = "",
                         const std::string& ucx_address = "127.0.0.1:0")
      : shm_name_(shm_name.empty() ? absl::StrCat("recon-test-", getpid(), "-", ++servers_made) : shm_name),
        service_(Handler()),
        rpc_(*RpcServer::Start("--listen", address, {}, {&service_})),
        shared_memory_(*ShmListener::Start(shm_name_, Handler())) {
    if (!HaveUcx()) return;
    ucx_ = *UcxListener::Start(ucx_address, Handler());
  }
  ~HoldingServer() {
    shared_memory_ = nullptr;
    ucx_ = nullptr;
    service_.Close();
    rpc_->Shutdown(absl::ZeroDuration());
  }

  const std::string& address() const { return rpc_->address(); }
  const std::string& shm_name() const { return shm_name_; }
  std::string ucx_address() const { return HaveUcx() ? absl::StrCat("127.0.0.1:", ucx_->port()) : ""; }
  int shm_connections() const { return shared_memory_->connections(); }
  void CutSharedMemory() { shared_memory_ = nullptr; }

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
  RequestHandler Handler() {
    return [this](const ByteChain& request, TakenCallback taken, Transport::Done done, ReplyMemory memory) {
      MutexLock lock(&mu_);
      held_.push_back({request, std::move(taken), std::move(done), std::move(memory)});
    };
  }

  Mutex mu_;
  std::deque<Held> held_ ABSL_GUARDED_BY(mu_);
  const std::string shm_name_;
  ParamService service_;
  std::unique_ptr<RpcServer> rpc_;
  std::unique_ptr<ShmListener> shared_memory_;
  std::unique_ptr<UcxListener> ucx_;
};

std::vector<std::string> Transports() {
  std::vector<std::string> kinds = {"one connection", "two connections", "shared memory"};
  if (HaveUcx()) kinds.push_back("UCX");
  return kinds;
}

std::unique_ptr<Transport> Connect(const HoldingServer& server, const std::string& kind) {
  const int connections = kind == "two connections" ? 2 : 1;
  const auto window = std::make_shared<SendWindow>(/*servers=*/1, connections);
  if (kind == "UCX") return *ConnectOverUcx(server.ucx_address());
  auto grpc = *ConnectForFrames(server.address(), {}, connections, window);
  if (kind != "shared memory") return grpc;
  auto shared = std::make_unique<ShmTransport>(server.shm_name(), std::move(grpc));
  REQUIRE(shared->Connected());
  return shared;
}

struct Answer {
  Notification done;
  absl::StatusOr<ByteChain> reply = ByteChain();
  uint64_t call = 0;
};

std::shared_ptr<Answer> Send(Transport* transport, const ByteChain& request) {
  auto answer = std::make_shared<Answer>();
  answer->call = transport->Call(request, [answer](absl::StatusOr<ByteChain> reply) {
    answer->reply = std::move(reply);
    answer->done.Notify();
  });
  return answer;
}

std::shared_ptr<Answer> Send(Transport* transport, const std::string& request) {
  return Send(transport, ByteChain::FromString(request));
}

absl::StatusOr<ByteChain> Await(const std::shared_ptr<Answer>& answer) {
  answer->done.WaitForNotification();
  return answer->reply;
}

// Whether this process shares memory with any.
bool RegionMapped() {
  std::ifstream maps("/proc/self/maps");
  const std::string all((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>());
  return absl::StrContains(all, "recon-frames");
}

constexpr size_t kMiB = size_t{1} << 20;

// Requests of a frame's size that are under way at once, to one server: by default elsewhere.
constexpr size_t kUnderWay = limits::kRequestBytesInFlight / limits::kFrameTargetBytes;
size_t UnderWay(const std::string& transport) {
  return transport == "shared memory" ? limits::kRequestFramesInSharedMemory : kUnderWay;
}

}  // namespace

TEST_CASE("replies find their calls, in whatever order they come", "[exchange]") {
  HoldingServer server;
  for (const std::string& kind : Transports()) {
    INFO(kind);
    const auto transport = Connect(server, kind);
    std::vector<std::shared_ptr<Answer>> answers;
    for (size_t i = 0; i < UnderWay(kind); ++i)
      answers.push_back(Send(transport.get(), absl::StrCat("call ", i)));
    std::vector<HoldingServer::Held> held;
    for (size_t i = 0; i < UnderWay(kind); ++i) held.push_back(server.Take());
    for (size_t i = held.size(); i-- > 0;)
      held[i].done(ByteChain::FromString(held[i].request.ToString() + "!"));
    for (size_t i = 0; i < UnderWay(kind); ++i) {
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
    CHECK(server.Settled() == UnderWay(kind));
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
    CHECK(server.Settled() == UnderWay(kind));
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

TEST_CASE("whoever keeps more than there are slots for gets copies", "[exchange]") {
  HoldingServer server;
  const auto transport = Connect(server, "shared memory");
  constexpr int kCalls = 2 * kShmSlots;
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < kCalls; ++i) answers.push_back(Send(transport.get(), absl::StrCat("request ", i)));
  // As a synchronous step does it: taken, but held until all are there.
  std::vector<HoldingServer::Held> held;
  for (int i = 0; i < kCalls; ++i) {
    held.push_back(server.Take());
    held.back().taken();
  }
  std::mt19937 random(1);
  std::shuffle(held.begin(), held.end(), random);
  for (auto& last : held) last.done(ByteChain::FromString("reply to " + last.request.ToString()));
  held.clear();
  // The answers are kept, too.
  for (int i = 0; i < kCalls; ++i) {
    CHECK(Await(answers[static_cast<size_t>(i)])->ToString() == absl::StrCat("reply to request ", i));
  }
}

TEST_CASE("a reply in the transport's memory is sent from there", "[exchange]") {
  HoldingServer server;
  const auto transport = Connect(server, "shared memory");
  const auto copied = [] { return CopiedBytes(CopyReason::kSharedMemory); };
  const auto reply_of = [](const std::shared_ptr<uint8_t[]>& memory, size_t from, size_t bytes) {
    ByteChain reply = ByteChain::FromString("head");
    reply.Append(memory.get() + from, bytes / 2, memory);
    reply.Append(memory.get() + from + bytes / 2, bytes - bytes / 2, memory);
    return reply;
  };
  const std::string expected = "head" + std::string(kMiB, 'r');
  const auto next = [&] {
    auto answer = Send(transport.get(), "q");
    return std::make_pair(std::move(answer), server.Take());
  };
  // More often than there are slots: they come back.
  for (uint32_t i = 0; i < kShmSlots + 10; ++i) {
    auto [answer, held] = next();
    std::shared_ptr<uint8_t[]> memory = held.memory(kMiB);
    REQUIRE(memory != nullptr);
    std::memset(memory.get(), 'r', i < 3 ? kMiB : 8);
    const uint64_t before = copied();
    held.done(reply_of(memory, 0, i < 3 ? kMiB : 8));
    memory = nullptr;
    const std::string reply = Await(answer)->ToString();
    CHECK(copied() - before < 100);
    CHECK(reply == expected.substr(0, reply.size()));
    if (i < 3) CHECK(reply.size() == expected.size());
  }
  auto [answer, held] = next();
  const std::shared_ptr<uint8_t[]> memory = held.memory(kMiB);
  std::memset(memory.get(), 'r', kMiB);
  SECTION("from its middle") {
    const uint64_t before = copied();
    held.done(reply_of(memory, 10, kMiB - 10));
    CHECK(Await(answer)->ToString() == expected.substr(0, kMiB - 10 + 4));
    CHECK(copied() - before < 100);
  }
  SECTION("others before, between and behind: those are copied") {
    ByteChain reply = ByteChain::FromString(std::string(100'000, 'h'));
    reply.Append(memory.get(), 1000, memory);
    reply.Append(ByteChain::FromString("between"));
    reply.Append(memory.get() + 1000, kMiB - 1000, memory);
    reply.Append(ByteChain::FromString("ta"));
    reply.Append(ByteChain::FromString("il"));
    const uint64_t before = copied();
    held.done(std::move(reply));
    CHECK(Await(answer)->ToString() == std::string(100'000, 'h') + std::string(1000, 'r') + "between" +
                                           std::string(kMiB - 1000, 'r') + "tail");
    CHECK(copied() - before < 100'100);
  }
  SECTION("to two requests at once") {
    auto [second, held_too] = next();
    const uint64_t before = copied();
    held.done(reply_of(memory, 0, kMiB));
    held_too.done(reply_of(memory, 0, kMiB));
    // Nobody overwrites what is kept: not what comes later, while the memory is in use or a reply is.
    const absl::StatusOr<ByteChain> first = Await(answer);
    CHECK(Await(second)->ToString() == expected);
    CHECK(copied() - before < 200);
    for (int i = 0; i < 10; ++i) {
      auto [later, held_later] = next();
      const std::shared_ptr<uint8_t[]> other = held_later.memory(kMiB);
      CHECK(other.get() != memory.get());
      std::memset(other.get(), 'x', kMiB);
      held_later.done(reply_of(other, 0, kMiB));
      Await(later).IgnoreError();
    }
    CHECK(first->ToString() == expected);
  }
  SECTION("in many pieces: copied") {
    ByteChain reply;
    for (size_t i = 0; i < 100; ++i) reply.Append(memory.get() + 2 * i, 1, memory);
    const uint64_t before = copied();
    held.done(std::move(reply));
    CHECK(Await(answer)->ToString() == std::string(100, 'r'));
    CHECK(copied() - before >= 100);
  }
  SECTION("some slots are left to what is copied") {
    std::vector<std::shared_ptr<uint8_t[]>> all;
    while (std::shared_ptr<uint8_t[]> slot = held.memory(8)) all.push_back(std::move(slot));
    CHECK(all.size() > kShmSlots / 4);
    held.done(ByteChain::FromString("copied"));
    CHECK(Await(answer)->ToString() == "copied");
    all.clear();
    CHECK(held.memory(8) != nullptr);
  }
  SECTION("larger than a slot") {
    CHECK(held.memory(kShmSlotBytes) != nullptr);
    CHECK(held.memory(kShmSlotBytes + 1) == nullptr);
    held.done(ByteChain());
  }
}

TEST_CASE("a request in the transport's memory is sent from there", "[exchange]") {
  HoldingServer server;
  const auto transport = Connect(server, "shared memory");
  const auto copied = [] { return CopiedBytes(CopyReason::kSharedMemory); };
  const auto filled = [&](size_t bytes, char with) {
    std::shared_ptr<uint8_t[]> memory = transport->RequestMemory(bytes);
    REQUIRE(memory != nullptr);
    CHECK(reinterpret_cast<uintptr_t>(memory.get()) % 64 == 0);
    std::memset(memory.get(), with, bytes);
    return memory;
  };
  const auto call = [&](const ByteChain& payload) {
    ByteChain request = ByteChain::FromString("head");
    request.Append(payload);
    return Send(transport.get(), request);
  };
  ByteChain payload;
  for (const char with : {'a', 'b'}) {
    const auto memory = filled(kMiB / 2, with);
    payload.Append(memory.get(), kMiB / 2, memory);
  }
  CHECK(payload.pieces().size() == 1);  // They lie side by side.
  const std::string expected = "head" + std::string(kMiB / 2, 'a') + std::string(kMiB / 2, 'b');
  SECTION("again and again, also while it is being read") {
    const uint64_t before = copied();
    const auto first = call(payload), second = call(payload);
    HoldingServer::Held held = server.Take(), held_too = server.Take();
    payload = ByteChain();
    // More than there is in all of the slots: they come back, and nobody overwrites what is read.
    for (uint32_t i = 0; i < 2 * kShmSlots; ++i) {
      const auto memory = transport->RequestMemory(kShmSlotBytes);
      REQUIRE(memory != nullptr);
      memory[0] = 'x';
    }
    CHECK(held.request.ToString() == expected);
    held.done(ByteChain::FromString("ok"));
    CHECK(Await(first)->ToString() == "ok");
    held = {};
    CHECK(held_too.request.ToString() == expected);
    held_too.done(ByteChain());
    CHECK(Await(second).ok());
    CHECK(copied() - before < 200);
  }
  SECTION("over the next connection: copied") {
    const auto slow = Send(transport.get(), "slow");
    server.Take();
    transport->Disconnect();
    CHECK(absl::IsUnavailable(Await(slow).status()));
    const auto answer = call(payload);
    HoldingServer::Held held = server.Take();
    CHECK(held.request.ToString() == expected);
    held.done(ByteChain::FromString("ok"));
    CHECK(Await(answer)->ToString() == "ok");
  }
  SECTION("there is none larger than a slot, and some slots are left to what is copied") {
    CHECK(transport->RequestMemory(kShmSlotBytes) != nullptr);
    CHECK(transport->RequestMemory(kShmSlotBytes + 1) == nullptr);
    std::vector<std::shared_ptr<uint8_t[]>> all;
    while (auto memory = transport->RequestMemory(kShmSlotBytes)) all.push_back(std::move(memory));
    CHECK(all.size() > kShmSlots / 4);
    // As of a large model's synchronous step: nothing is let go before all are there.
    constexpr int kCalls = 2 * kShmSlots;
    std::vector<std::shared_ptr<Answer>> answers;
    std::vector<HoldingServer::Held> held;
    for (int i = 0; i < kCalls; ++i) {
      answers.push_back(Send(transport.get(), absl::StrCat(i)));
      held.push_back(server.Take());
      held.back().taken();
    }
    for (int i = 0; i < kCalls; ++i)
      CHECK(held[static_cast<size_t>(i)].request.ToString() == absl::StrCat(i));
    for (HoldingServer::Held& one : held) one.done(ByteChain());
    for (const auto& answer : answers) CHECK(Await(answer).ok());
    held.clear();
    all.clear();
    CHECK(transport->RequestMemory(8) != nullptr);
  }
}

TEST_CASE("a message that does not end ends the connection", "[exchange]") {
  const auto closed_after = [](const std::vector<ShmRing::Entry>& entries) {
    auto region = *ShmRegion::Create();
    ShmRing* const ring = &region->direction(0)->sent;
    int sockets[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    const OwnedFd other(sockets[1]);
    ShmPeer server(ShmPeer::Side::kServer, std::move(region), OwnedFd(sockets[0]), OwnedFd(eventfd(0, 0)),
                   OwnedFd(eventfd(0, 0)));
    for (const ShmRing::Entry& entry : entries) ring->Put(entry);
    Notification done;
    absl::Status closed;
    server.Start([](const ByteChain&) { FAIL("nothing was whole"); },
                 [&](const absl::Status& why) {
                   closed = why;
                   done.Notify();
                 });
    done.WaitForNotification();
    return closed;
  };
  CHECK(absl::IsDataLoss(closed_after({{0, 0, static_cast<uint32_t>(kShmSlotBytes), 1}, {1, 0, 1, 1}})));
  CHECK(absl::IsDataLoss(closed_after(std::vector<ShmRing::Entry>(65, {2, 0, 1, 1}))));
  CHECK(absl::IsDataLoss(closed_after({{2, 0, 0, 1}})));
}

TEST_CASE("memory for a reply is used, and let go, after the connection has gone", "[exchange]") {
  HoldingServer server;
  auto transport = Connect(server, "shared memory");
  const auto answer = Send(transport.get(), "q");
  HoldingServer::Held held = server.Take();
  std::shared_ptr<uint8_t[]> memory = held.memory(kMiB);
  server.CutSharedMemory();
  CHECK(absl::IsUnavailable(Await(answer).status()));
  CHECK(held.memory(8) == nullptr);
  std::memset(memory.get(), 'x', kMiB);
  ByteChain reply;
  reply.Append(memory.get(), kMiB, memory);
  held.done(std::move(reply));
  transport = nullptr;
  held = {};
  CHECK(RegionMapped());
  // Whoever only remembers it does not keep the region.
  const std::weak_ptr<uint8_t[]> remembered = memory;
  memory = nullptr;
  REQUIRE(Eventually([] { return !RegionMapped(); }));
  CHECK(remembered.expired());
}

TEST_CASE("messages wait for slots while the other end does not read", "[exchange]") {
  const std::string name = absl::StrCat("recon-test-", getpid(), "-slots");
  const OwnedFd listener = *ListenForShm(name);
  std::unique_ptr<ShmPeer> server;
  std::thread accept([&] { server = *AcceptShm(listener); });
  const std::unique_ptr<ShmPeer> worker = *ConnectShm(name);
  accept.join();
  worker->Start([](const ByteChain&) {}, [](const absl::Status&) {});
  constexpr uint32_t kMessages = 2 * kShmSlots + 7;
  for (uint32_t i = 0; i < kMessages; ++i)
    CHECK(worker->sender().Send(ByteChain::FromString(absl::StrCat(i))));
  Mutex mu;
  std::vector<std::string> seen;
  server->Start(
      [&](const ByteChain& message) {
        MutexLock lock(&mu);
        seen.push_back(message.ToString());
      },
      [](const absl::Status&) {});
  MutexLock lock(&mu);
  mu.Await([&] { return seen.size() == kMessages; });
  for (uint32_t i = 0; i < kMessages; ++i) CHECK(seen[i] == absl::StrCat(i));
}

TEST_CASE("requests stay readable after their connection has gone, and its memory goes with the last",
          "[exchange]") {
  HoldingServer server;
  auto transport = Connect(server, "shared memory");
  const auto answer = Send(transport.get(), std::string(kMiB, 'x'));
  HoldingServer::Held held = server.Take();
  transport = nullptr;
  CHECK(absl::IsUnavailable(Await(answer).status()));
  REQUIRE(Eventually([&] { return server.shm_connections() == 0; }));
  CHECK(held.request.ToString() == std::string(kMiB, 'x'));
  CHECK(RegionMapped());
  held.done(ByteChain());
  held = {};
  // The server's end is taken down by its accepting thread.
  REQUIRE(Eventually([] { return !RegionMapped(); }));
}

TEST_CASE("a process of another kind is refused", "[exchange]") {
  HoldingServer server;
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  server.shm_name().copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + server.shm_name().size());
  REQUIRE(connect(socket, reinterpret_cast<sockaddr*>(&address), length) == 0);
  CHECK(send(socket, "hello", 5, 0) == 5);
  char byte = 0;
  CHECK(recv(socket, &byte, 1, 0) <= 0);  // Hung up, not welcomed.
  close(socket);
  const auto transport = Connect(server, "shared memory");  // The next one is served.
  // The server welcomes a connection before it counts it.
  CHECK(Eventually([&] { return server.shm_connections() == 1; }));
}

TEST_CASE("rings that make no sense end the connection", "[exchange]") {
  auto region = *ShmRegion::Create();
  ShmRing& ring = region->direction(0)->sent;
  ShmRing::Entry entry;
  CHECK_FALSE(*ring.Take(&entry));
  ring.Put({kShmSlots, 0, 1, 0});
  CHECK(absl::IsDataLoss(ring.Take(&entry).status()));
  ring.entries[0] = {3, 0, static_cast<uint32_t>(kShmSlotBytes) + 1, 0};
  CHECK(absl::IsDataLoss(ring.Take(&entry).status()));
  ring.entries[0] = {3, static_cast<uint32_t>(kShmSlotBytes), 1, 0};
  CHECK(absl::IsDataLoss(ring.Take(&entry).status()));
  ring.entries[0] = {3, UINT32_MAX, UINT32_MAX, 0};
  CHECK(absl::IsDataLoss(ring.Take(&entry).status()));
  ring.entries[0] = {3, 8, 16, 0};
  ring.put.store(kShmEntriesMax + 1);
  CHECK(absl::IsDataLoss(ring.Take(&entry).status()));
  ring.put.store(1);
  CHECK(*ring.Take(&entry));
  CHECK(absl::IsInvalidArgument(ShmRegion::Attach(memfd_create("x", 0)).status()));
  CHECK(absl::IsInvalidArgument(ShmRegion::Attach(-1).status()));
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
