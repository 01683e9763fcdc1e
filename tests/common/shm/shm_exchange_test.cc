// What is shared memory's alone; what it has in common with the other transports is in exchange_test.cc.

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "common/base/copied_bytes.h"
#include "common/base/host_pinning.h"
#include "common/base/limits.h"
#include "common/shm/shm_socket.h"
#include "tests/support/holding_server.h"
#include "tests/support/process.h"

namespace recon {
namespace {

// Whether this process shares memory with any.
bool RegionMapped() {
  std::ifstream maps("/proc/self/maps");
  const std::string all((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>());
  return absl::StrContains(all, "recon-frames");
}

}  // namespace

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
    std::shared_ptr<uint8_t[]> memory = held.memory.allocate(kMiB);
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
  const std::shared_ptr<uint8_t[]> memory = held.memory.allocate(kMiB);
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
      const std::shared_ptr<uint8_t[]> other = held_later.memory.allocate(kMiB);
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
    while (std::shared_ptr<uint8_t[]> slot = held.memory.allocate(8)) all.push_back(std::move(slot));
    CHECK(all.size() > kShmSlots / 4);
    held.done(ByteChain::FromString("copied"));
    CHECK(Await(answer)->ToString() == "copied");
    all.clear();
    CHECK(held.memory.allocate(8) != nullptr);
  }
  SECTION("larger than a slot") {
    CHECK(held.memory.allocate(kShmSlotBytes) != nullptr);
    CHECK(held.memory.allocate(kShmSlotBytes + 1) == nullptr);
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

namespace {

// What a device's driver would have pinned.
std::map<uint8_t*, size_t> pinned_ranges;
int unpinned = 0;

bool PinRange(void* begin, size_t bytes) {
  auto* const first = static_cast<uint8_t*>(begin);
  const auto next = pinned_ranges.lower_bound(first);
  REQUIRE((next == pinned_ranges.end() || next->first >= first + bytes));
  REQUIRE((next == pinned_ranges.begin() || std::prev(next)->first + std::prev(next)->second <= first));
  pinned_ranges[first] = bytes;
  return true;
}

void UnpinRange(void* begin) {
  auto* const first = static_cast<volatile uint8_t*>(begin);
  first[0] = 1;  // It is mapped still.
  REQUIRE(pinned_ranges.erase(static_cast<uint8_t*>(begin)) == 1);
  ++unpinned;
}

}  // namespace

TEST_CASE("the transport's memory is pinned once, as long as it is there", "[exchange]") {
  SetHostPinning({PinRange, UnpinRange});
  {
    HoldingServer server;
    const auto transport = Connect(server, "shared memory");
    for (int i = 0; i < 20; ++i) {
      const auto memory = transport->RequestMemory(3 * kMiB);
      const auto range = std::prev(pinned_ranges.upper_bound(memory.get()));
      CHECK(memory.get() + 3 * kMiB <= range->first + range->second);
    }
    // A slot is used again, and is not pinned again.
    CHECK(pinned_ranges.size() < 10);
    CHECK(unpinned == 0);
  }
  CHECK(pinned_ranges.empty());
  CHECK(unpinned > 0);
  SetHostPinning({[](void*, size_t) { return false; }, UnpinRange});
  {
    HoldingServer server;
    const auto transport = Connect(server, "shared memory");
    CHECK(transport->RequestMemory(kMiB) != nullptr);
  }
  SetHostPinning({});
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
    REQUIRE(server
                .Start([](const ByteChain&) { FAIL("nothing was whole"); },
                       [&](const absl::Status& why) {
                         closed = why;
                         done.Notify();
                       })
                .ok());
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
  std::shared_ptr<uint8_t[]> memory = held.memory.allocate(kMiB);
  server.CutSharedMemory();
  CHECK(absl::IsUnavailable(Await(answer).status()));
  CHECK(held.memory.allocate(8) == nullptr);
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

TEST_CASE("who gives a pipe to be woken by, which would block its writer when it is full, is not served",
          "[exchange]") {
  const std::string name = absl::StrCat("recon-test-", getpid(), "-pipe");
  const OwnedFd listener = *ListenForShm(name);
  const int blocking = GENERATE(0, 1, 2);
  const OwnedFd client(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  REQUIRE(connect(client.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0);
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  const OwnedFd reading(ends[0]);
  const OwnedFd writing(ends[1]);
  const auto region = *ShmRegion::Create();
  const OwnedFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const OwnedFd waits(eventfd(0, EFD_CLOEXEC));
  const int wrong = blocking == 0 ? writing.get() : waits.get();
  const int fds[3] = {region->fd(), blocking == 2 ? event.get() : wrong, blocking == 2 ? wrong : event.get()};
  char greeting[1 + WorkerSecret::kBytes] = {'R'};
  iovec data{greeting, sizeof(greeting)};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fds))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(fds));
  memcpy(CMSG_DATA(header), fds, sizeof(fds));
  REQUIRE(sendmsg(client.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(greeting)));
  const auto accepted = AcceptShm(listener);
  CHECK(absl::StrContains(accepted.status().message(), "something else than an eventfd"));
}

TEST_CASE("messages wait for slots while the other end does not read", "[exchange]") {
  const std::string name = absl::StrCat("recon-test-", getpid(), "-slots");
  const OwnedFd listener = *ListenForShm(name);
  std::unique_ptr<ShmPeer> server;
  std::thread accept([&] { server = std::move(AcceptShm(listener)->peer); });
  const std::unique_ptr<ShmPeer> worker = *ConnectShm(name);
  accept.join();
  REQUIRE(worker->Start([](const ByteChain&) {}, [](const absl::Status&) {}).ok());
  constexpr uint32_t kMessages = 2 * kShmSlots + 7;
  for (uint32_t i = 0; i < kMessages; ++i)
    CHECK(worker->sender().Send(ByteChain::FromString(absl::StrCat(i))));
  Mutex mu;
  std::vector<std::string> seen;
  const absl::Status started = server->Start(
      [&](const ByteChain& message) {
        MutexLock lock(&mu);
        seen.push_back(message.ToString());
      },
      [](const absl::Status&) {});
  REQUIRE(started.ok());
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

}  // namespace recon
