#include "common/rpc/front_door.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/mutex.h"
#include "tests/support/process.h"

namespace recon {
namespace {

// A door, and who came in.
class OpenDoor {
 public:
  explicit OpenDoor(const std::string& address, const ConnectionLimits& limits = {})
      : door_(*FrontDoor::Listen("--listen", address, limits)) {
    door_->Start(
        [this](int, int fd) {
          MutexLock lock(&mu_);
          came_in_.emplace_back(fd);
        },
        &connections_);
  }

  int port() const { return door_->port(); }
  const Connections& connections() const { return connections_; }
  size_t came_in() {
    MutexLock lock(&mu_);
    return came_in_.size();
  }

 private:
  Connections connections_;
  Mutex mu_;
  std::vector<OwnedFd> came_in_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<FrontDoor> door_;  // Last: its thread uses the rest.
};

// Over IPv4 or IPv6, on this machine; over IPv4 from 127.0.0.`host`.
class Guest {
 public:
  Guest(int family, int port, uint32_t host = 1) : fd_(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(0x7f000000 + host);
    if (host != 1) REQUIRE(bind(fd_.get(), reinterpret_cast<sockaddr*>(&from), sizeof(from)) == 0);
    sockaddr_storage to{};
    socklen_t length = 0;
    if (family == AF_INET) {
      auto* four = reinterpret_cast<sockaddr_in*>(&to);
      four->sin_family = AF_INET;
      four->sin_port = htons(static_cast<uint16_t>(port));
      four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      length = sizeof(*four);
    } else {
      auto* six = reinterpret_cast<sockaddr_in6*>(&to);
      six->sin6_family = AF_INET6;
      six->sin6_port = htons(static_cast<uint16_t>(port));
      six->sin6_addr = in6addr_loopback;
      length = sizeof(*six);
    }
    connected_ = connect(fd_.get(), reinterpret_cast<sockaddr*>(&to), length) == 0;
    const timeval soon{10, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
  }

  bool connected() const { return connected_; }
  // As much as the other end takes; whether it has hung up.
  bool Send(size_t bytes) {
    const std::string text(bytes, 'x');
    return send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN;
  }
  bool HungUp() {
    char byte = 0;
    return recv(fd_.get(), &byte, 1, 0) <= 0;
  }
  std::string Name() const {
    sockaddr_storage mine{};
    socklen_t length = sizeof(mine);
    getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&mine), &length);
    return mine.ss_family == AF_INET
               ? absl::StrCat(inet_ntoa(reinterpret_cast<sockaddr_in*>(&mine)->sin_addr), ":",
                              ntohs(reinterpret_cast<sockaddr_in*>(&mine)->sin_port))
               : absl::StrCat("[::1]:", ntohs(reinterpret_cast<sockaddr_in6*>(&mine)->sin6_port));
  }

 private:
  OwnedFd fd_;
  bool connected_ = false;
};

}  // namespace

TEST_CASE("who speaks is let in and known by the name that gRPC has for it, over IPv4 and IPv6",
          "[connections]") {
  const bool have_six = Guest(AF_INET6, OpenDoor("[::]:0").port()).connected();
  for (const std::string address : {"127.0.0.1:0", "localhost:0", "0.0.0.0:0", "[::]:0", "[::1]:0"}) {
    INFO(address);
    if (address == "[::1]:0" && !have_six) continue;
    OpenDoor door(address);
    for (const int family : {AF_INET, AF_INET6}) {
      Guest guest(family, door.port());
      if (!guest.connected()) {
        // Only where the address is of the other kind, as that of a name may be.
        const bool both = address == "0.0.0.0:0" || address == "[::]:0";
        CHECK((family == AF_INET ? address == "[::1]:0" : !have_six || (!both && address != "[::1]:0")));
        continue;
      }
      CHECK(door.connections().Find(guest.Name()) == nullptr);
      guest.Send(1);
      CHECK(Eventually([&] { return door.connections().Find(guest.Name()) != nullptr; }));
    }
  }
}

TEST_CASE("a port that is taken, and an address of another machine, are named", "[connections]") {
  const OpenDoor door("127.0.0.1:0");
  const auto error = [](const std::string& address) {
    return std::string(FrontDoor::Listen("--listen", address, {}).status().message());
  };
  const std::string taken = absl::StrCat("127.0.0.1:", door.port());
  CHECK(error(taken) == absl::StrCat("--listen ", taken, ": cannot listen: the port is taken"));
  CHECK(error("192.0.2.1:0") == "--listen 192.0.2.1:0: cannot listen: Cannot assign requested address");
}

TEST_CASE("strangers who send much are cut, those who say nothing too, and members stay", "[connections]") {
  ConnectionLimits limits;
  limits.silent_max = 2;
  limits.connections_max = 4;
  limits.stranger_bytes_max = 16 << 10;  // Nobody reads: the kernel keeps some.
  limits.stranger_grace = absl::ZeroDuration();
  OpenDoor door("127.0.0.1:0", limits);
  Guest member(AF_INET, door.port());
  member.Send(1);
  REQUIRE(Eventually([&] { return door.connections().Find(member.Name()) != nullptr; }));
  door.connections().Find(member.Name())->NoteMember();
  Guest stranger(AF_INET, door.port());
  CHECK(Eventually([&] { return stranger.Send(4 << 10); }));
  // Of the silent, the first ones have to go, and of those who spoke the strangers.
  std::vector<std::unique_ptr<Guest>> guests;
  for (int i = 0; i < 3; ++i) guests.push_back(std::make_unique<Guest>(AF_INET, door.port()));
  CHECK(guests[0]->HungUp());
  for (auto& guest : guests) guest->Send(1);
  std::vector<std::unique_ptr<Guest>> others;
  for (int i = 0; i < 8; ++i) {
    others.push_back(std::make_unique<Guest>(AF_INET, door.port()));
    const size_t before = door.came_in();
    others.back()->Send(1);
    CHECK(Eventually([&] { return door.came_in() > before; }));
  }
  CHECK(others[0]->HungUp());
  CHECK(door.connections().Find(member.Name()) != nullptr);
  CHECK(!member.Send(1));
}

TEST_CASE("strangers have so many connections at most, and members do not count", "[connections]") {
  ConnectionLimits limits;
  limits.strangers_max = 3;
  limits.stranger_grace = absl::ZeroDuration();
  OpenDoor door("127.0.0.1:0", limits);
  std::vector<std::unique_ptr<Guest>> guests;
  const auto enter = [&] {
    guests.push_back(std::make_unique<Guest>(AF_INET, door.port()));
    const size_t before = door.came_in();
    guests.back()->Send(1);
    CHECK(Eventually([&] { return door.came_in() > before; }));
    return guests.back().get();
  };
  const auto known = [&](const Guest* guest) { return door.connections().Find(guest->Name()) != nullptr; };
  std::vector<const Guest*> members;
  for (int i = 0; i < 5; ++i) {
    members.push_back(enter());
    door.connections().Find(members.back()->Name())->NoteMember();
  }
  Guest* first = enter();
  const Guest* second = enter();
  enter();
  CHECK(known(first));
  enter();
  CHECK(first->HungUp());
  CHECK(Eventually([&] { return !known(first); }));
  CHECK(known(second));
  for (const Guest* member : members) CHECK(known(member));
}

TEST_CASE("strangers that have just come do not have to go for more of them", "[connections]") {
  ConnectionLimits limits;
  limits.strangers_max = 2;
  limits.stranger_grace = absl::Hours(1);
  OpenDoor door("127.0.0.1:0", limits);
  std::vector<std::unique_ptr<Guest>> guests;
  for (size_t i = 1; i <= 4; ++i) {
    guests.push_back(std::make_unique<Guest>(AF_INET, door.port()));
    guests.back()->Send(1);
    if (i <= 2) CHECK(Eventually([&] { return door.came_in() == i; }));
    if (i > 2) CHECK(guests.back()->HungUp());
  }
  // One of them shows that it is a member: there is room.
  door.connections().Find(guests[0]->Name())->NoteMember();
  guests.push_back(std::make_unique<Guest>(AF_INET, door.port()));
  guests.back()->Send(1);
  CHECK(Eventually([&] { return door.came_in() == 3; }));
}

TEST_CASE(
    "strangers are let in some at a time, from each address in turn, and who shows what it is makes room",
    "[connections]") {
  ConnectionLimits limits;
  limits.entering_max = 2;
  limits.entering_for = absl::Hours(1);
  OpenDoor door("127.0.0.1:0", limits);
  std::vector<std::unique_ptr<Guest>> guests;
  const auto speak = [&](uint32_t host) {
    guests.push_back(std::make_unique<Guest>(AF_INET, door.port(), host));
    guests.back()->Send(1);
  };
  const auto inside = [&](size_t guest) { return door.connections().Find(guests[guest]->Name()); };
  for (size_t i = 0; i < 2; ++i) {
    speak(1);
    REQUIRE(Eventually([&] { return inside(i) != nullptr; }));
  }
  for (const uint32_t host : {1, 1, 2}) speak(host);
  inside(0)->NoteMember();
  CHECK(Eventually([&] { return inside(2) != nullptr || inside(4) != nullptr; }));
  // Which of them is the first depends on when the door has heard of the last one.
  CHECK((inside(2) == nullptr || inside(4) == nullptr));
  inside(1)->NoteMember();
  CHECK(Eventually([&] { return inside(2) != nullptr && inside(4) != nullptr; }));
  CHECK(inside(3) == nullptr);
  inside(4)->NoteMember();
  CHECK(Eventually([&] { return inside(3) != nullptr; }));
}

TEST_CASE("who waits at the door for too long is sent away", "[connections]") {
  ConnectionLimits limits;
  limits.entering_max = 0;
  limits.silence_max = absl::Milliseconds(100);
  OpenDoor door("127.0.0.1:0", limits);
  Guest guest(AF_INET, door.port());
  guest.Send(1);
  CHECK(guest.HungUp());
  CHECK(door.came_in() == 0);
}

TEST_CASE("an address that begins too many connections is turned away, and keeps those that it has",
          "[connections]") {
  ConnectionLimits limits;
  limits.begin_at_once_max = 3;
  limits.begin_per_second_max = 1e-6;
  OpenDoor door("127.0.0.1:0", limits);
  const Guest silent(AF_INET, door.port());  // Is none of them.
  std::vector<std::unique_ptr<Guest>> guests;
  for (size_t i = 1; i <= 5; ++i) {
    guests.push_back(std::make_unique<Guest>(AF_INET, door.port()));
    REQUIRE(guests.back()->connected());
    guests.back()->Send(1);
    if (i <= 3) {
      CHECK(Eventually([&] { return door.came_in() == i; }));
    } else {
      CHECK(guests.back()->HungUp());
    }
  }
  CHECK(door.came_in() == 3);
}

TEST_CASE("with no descriptor left whoever comes is turned away, and those who come later are let in",
          "[connections]") {
  OpenDoor door("127.0.0.1:0");
  std::vector<OwnedFd> guests;
  for (int i = 0; i < 3; ++i) guests.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(door.port()));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval soon{30, 0};
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  // No number is free below it.
  const rlimit none{static_cast<rlim_t>(OwnedFd(dup(guests[0].get())).get()), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
  std::vector<ssize_t> received;
  for (const OwnedFd& guest : guests) {
    char byte = 0;
    setsockopt(guest.get(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof(soon));
    const bool connected = connect(guest.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
    received.push_back(connected ? recv(guest.get(), &byte, 1, 0) : -2);
  }
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
  // Hung up: not left in the queue, where they would wait for ever.
  CHECK(received == std::vector<ssize_t>{0, 0, 0});
  CHECK(door.came_in() == 0);
  Guest later(AF_INET, door.port());
  later.Send(1);
  CHECK(Eventually([&] { return door.came_in() == 1; }));
}

}  // namespace recon
