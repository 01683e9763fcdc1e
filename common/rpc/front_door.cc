#include "common/rpc/front_door.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// Between two looks at what has come in; shorter while a stranger sends much.
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr absl::Duration kLookSoon = absl::Milliseconds(10);
constexpr uint64_t kMuchBytes = uint64_t{64} << 10;
constexpr uint64_t kManyCalls = 32;
// Of strangers who have less the looks that are soon say nothing: each is two calls of the kernel.
constexpr uint64_t kSomeBytes = kMuchBytes / 8;
constexpr uint64_t kSomeCalls = kManyCalls / 8;
constexpr absl::Duration kSayEvery = absl::Seconds(10);
constexpr int kBacklog = 1024;
// With port 0, of a host of several addresses.
constexpr int kPortTries = 10;
// So much a second is nobody's fault: what a connection without calls sends to be kept.
constexpr double kForgivenBytesPerSecond = 1024;
// After descriptors were short.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(50);

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};

// As PeerOf() has it: "10.0.0.2:4711", "[::1]:4711". A socket for both shows IPv4 as
// "[::ffff:10.0.0.2]:4711", and gRPC does not.
std::string Shown(const sockaddr_storage& address, socklen_t length) {
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&address);
  if (address.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
    sockaddr_storage mapped{};
    auto* four = reinterpret_cast<sockaddr_in*>(&mapped);
    four->sin_family = AF_INET;
    four->sin_port = six->sin6_port;
    memcpy(&four->sin_addr, six->sin6_addr.s6_addr + 12, sizeof(four->sin_addr));
    return Shown(mapped, sizeof(*four));
  }
  char host[NI_MAXHOST] = "";
  char port[NI_MAXSERV] = "";
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  return address.ss_family == AF_INET6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

uint64_t InodeOf(int fd) {
  struct stat found {};
  return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode) ? found.st_ino : 0;
}

uint64_t BytesReceived(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0 ? info.tcpi_bytes_received : 0;
}

// Of a socket that gRPC has and may close at any moment: its number may be another file's then.
void HangUp(int fd, uint64_t inode) {
  const OwnedFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (copy.get() >= 0 && InodeOf(copy.get()) == inode) shutdown(copy.get(), SHUT_RDWR);
}

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = 0;
  int family() const { return bytes.ss_family; }
  uint16_t port() const {
    return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bytes)->sin6_port
                                      : reinterpret_cast<const sockaddr_in*>(&bytes)->sin_port);
  }
  void SetPort(uint16_t port) {
    (family() == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bytes)->sin6_port
                          : reinterpret_cast<sockaddr_in*>(&bytes)->sin_port) = htons(port);
  }
};

// What HOST stands for, each once. Of "any", one that is for IPv6 and IPv4, and IPv4's in case there is no
// IPv6.
absl::StatusOr<std::vector<Address>> Resolve(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  std::vector<std::string> hosts = {host};
  if (IsWildcard(address)) hosts = {"::", "0.0.0.0"};
  std::vector<Address> all;
  for (const std::string& one : hosts) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE;
    addrinfo* found = nullptr;
    const int looked_up = getaddrinfo(one.c_str(), nullptr, &hints, &found);
    if (looked_up != 0) return absl::UnavailableError(gai_strerror(looked_up));
    const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
    for (const addrinfo* it = addresses.get(); it != nullptr; it = it->ai_next) {
      Address next;
      memcpy(&next.bytes, it->ai_addr, it->ai_addrlen);
      next.length = it->ai_addrlen;
      const auto same = [&](const Address& other) {
        return other.length == next.length && memcmp(&other.bytes, &next.bytes, next.length) == 0;
      };
      if (std::none_of(all.begin(), all.end(), same)) all.push_back(next);
    }
  }
  return all;
}

}  // namespace

absl::StatusOr<std::unique_ptr<FrontDoor>> FrontDoor::Listen(const std::string& flag,
                                                             const std::string& address,
                                                             const ConnectionLimits& limits) {
  std::unique_ptr<FrontDoor> door(new FrontDoor(limits));
  RECON_RETURN_IF_ERROR(door->ListenOn(flag, address));
  door->spare_ = OwnedFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
  door->wake_ = OwnedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (door->wake_.get() < 0)
    return absl::UnavailableError(absl::StrCat(flag, " ", address, ": eventfd failed"));
  return door;
}

absl::Status FrontDoor::ListenOn(const std::string& flag, const std::string& address) {
  const auto wrong = [&](absl::string_view why) {
    return absl::UnavailableError(absl::StrCat(flag, " ", address, ": cannot listen: ", why));
  };
  RECON_ASSIGN_OR_RETURN(const uint16_t port, PortOf(address));
  const auto addresses = Resolve(address);
  if (!addresses.ok()) return wrong(addresses.status().message());
  absl::Status last = wrong("it is no address of this host");
  // A port that is free for the first address may be taken for the next.
  for (int tries = 0; tries < (port == 0 ? kPortTries : 1); ++tries) {
    listeners_.clear();
    port_ = port;
    bool taken = false;
    for (const Address& one : *addresses) {
      // One for both.
      if (IsWildcard(address) && !listeners_.empty()) break;
      const int error = ListenOnOne(one.bytes, one.length);
      if (error == 0) continue;
      // A kernel without IPv6 has no such addresses.
      const bool other_family = error == EADDRNOTAVAIL || error == EAFNOSUPPORT;
      taken = error == EADDRINUSE;
      last = wrong(taken ? "the port is taken" : strerror(error));
      if (!other_family) break;
    }
    if (taken) continue;
    if (!listeners_.empty()) return absl::OkStatus();
    return last;
  }
  return last;
}

int FrontDoor::ListenOnOne(const sockaddr_storage& address, socklen_t length) {
  Address to{address, length};
  to.SetPort(static_cast<uint16_t>(port_));
  OwnedFd fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return errno;
  const int on = 1;
  const int off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  // What is accepted inherits these. Unacknowledged data ends a connection as a keepalive without answer
  // does: behind such data none is sent.
  const auto silence_ms = static_cast<unsigned>(limits::kKeepaliveTimeout / absl::Milliseconds(1));
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
  if (to.family() == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&to.bytes), to.length) != 0) return errno;
  if (listen(fd.get(), kBacklog) != 0) return errno;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&to.bytes), &to.length) != 0) return errno;
  port_ = to.port();
  listeners_.push_back(std::move(fd));
  return 0;
}

void FrontDoor::Start(HandOver hand_over, Connections* connections) {
  hand_over_ = std::move(hand_over);
  connections_ = connections;
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "front-door");
    Run();
  });
}

FrontDoor::~FrontDoor() {
  stopping_.store(true);
  WakeUp(wake_);
  if (thread_.joinable()) thread_.join();
}

void FrontDoor::Run() {
  look_every_ = kLook;
  while (!stopping_.load()) {
    std::vector<pollfd> polled;
    polled.push_back({wake_.get(), POLLIN, 0});
    const bool paused = Now() < accept_again_;
    const short wanted = paused ? 0 : POLLIN;  // NOLINT(google-runtime-int): poll's type.
    for (const OwnedFd& listener : listeners_) polled.push_back({listener.get(), wanted, 0});
    // Of those who speak already nothing is to be heard.
    for (const Silent& silent : silent_)
      polled.push_back({silent.speaks ? -1 : silent.fd.get(), POLLIN | POLLRDHUP, 0});
    const bool look = paused || !handed_.empty() || !silent_.empty();
    const absl::Duration left =
        std::clamp(NextLook() - Now(), absl::Milliseconds(1), waiting_ ? kLookSoon : look_every_);
    poll(polled.data(), polled.size(), look ? static_cast<int>(left / absl::Milliseconds(1)) : -1);
    if (stopping_.load()) return;
    std::vector<int> readable;
    for (size_t i = 1 + listeners_.size(); i < polled.size(); ++i) {
      if (polled[i].revents != 0) readable.push_back(polled[i].fd);
    }
    NoteThoseWhoSpeak(readable);
    HandOverThoseWhoSpeak();
    const absl::Time now = Now();
    DropSilent(now);
    if (now >= NextLook()) Look(now, now - looked_at_all_ >= kLook);
    for (size_t i = 1; i <= listeners_.size(); ++i) {
      if ((polled[i].revents & POLLIN) != 0) Accept(polled[i].fd);
    }
  }
}

void FrontDoor::Accept(int listener) {
  // Some at a time: those who are there already are looked at, too.
  for (int i = 0; i < kBacklog / 16; ++i) {
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    OwnedFd fd(accept4(listener, reinterpret_cast<sockaddr*>(&peer), &length, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.get() < 0) {
      const bool none_left = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (none_left) TurnAway(listener);
      if (none_left || errno == EAGAIN || errno == EWOULDBLOCK) return;
      continue;  // It has hung up already.
    }
    const std::string shown = Shown(peer, length);
    if (!MakeRoom()) {
      SayRefused(shown, "there are as many connections as this process may have (ulimit -n)");
      continue;
    }
    silent_.push_back({std::move(fd), listener, shown, AddressRates::KeyOf(peer), Now()});
  }
}

void FrontDoor::TurnAway(int listener) {
  accept_again_ = Now() + kAcceptPause;
  spare_ = OwnedFd();
  {
    const OwnedFd fd(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.get() >= 0) SayRefused("", "this process has no descriptor left (ulimit -n)");
  }
  spare_ = OwnedFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

bool FrontDoor::MakeRoom() {
  if (silent_.size() >= limits_.silent_max) {
    absl::flat_hash_map<uint64_t, size_t> waiting;
    for (const Silent& one : silent_) ++waiting[one.address];
    const auto first = std::max_element(
        silent_.begin(), silent_.end(),
        [&](const Silent& a, const Silent& b) { return waiting[a.address] < waiting[b.address]; });
    SayRefused(first->peer,
               "many have connected and wait or say nothing, and it is the first of its address");
    silent_.erase(first);
  }
  if (silent_.size() + handed_.size() < limits_.connections_max) return true;
  Look(Now(), /*all=*/true);  // Some may have ended.
  if (silent_.size() + handed_.size() < limits_.connections_max) return true;
  return DropOldestStranger("there are as many connections as this process may have");
}

bool FrontDoor::DropOldestStranger(const std::string& why) {
  const auto stranger = std::find_if(handed_.begin(), handed_.end(),
                                     [](const Handed& one) { return !one.connection->member(); });
  if (stranger == handed_.end() || Now() - stranger->since < limits_.stranger_grace) return false;
  SayRefused(stranger->peer, absl::StrCat("it is not of the job, and ", why));
  HangUp(stranger->fd, stranger->inode);  // gRPC closes it.
  connections_->Remove(stranger->peer, stranger->connection.get());
  handed_.erase(stranger);
  strangers_ -= std::min<size_t>(strangers_, 1);
  return true;
}

bool FrontDoor::MakeRoomForStranger() {
  if (strangers_ < limits_.strangers_max) return true;
  // Some may have become members,
  strangers_ = static_cast<size_t>(std::count_if(
      handed_.begin(), handed_.end(), [](const Handed& one) { return !one.connection->member(); }));
  if (strangers_ < limits_.strangers_max) return true;
  // or ended. A look at all of them for each that comes would be the attack.
  const absl::Time now = Now();
  if (now - looked_at_all_ >= kLookSoon) Look(now, /*all=*/true);
  return strangers_ < limits_.strangers_max ||
         DropOldestStranger(absl::StrCat("there are ", limits_.strangers_max, " others"));
}

void FrontDoor::NoteThoseWhoSpeak(const std::vector<int>& readable) {
  if (readable.empty()) return;
  for (auto it = silent_.begin(); it != silent_.end();) {
    if (std::find(readable.begin(), readable.end(), it->fd.get()) == readable.end()) {
      ++it;
      continue;
    }
    char first = 0;
    const ssize_t bytes = recv(it->fd.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    it->speaks = bytes > 0;
    const bool stays =
        bytes > 0 || (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
    it = stays ? std::next(it) : silent_.erase(it);
  }
}

void FrontDoor::HandOverThoseWhoSpeak() {
  absl::flat_hash_map<uint64_t, size_t> inside = Entering(Now());
  size_t entering = 0;
  for (const auto& [address, connections] : inside) entering += connections;
  const auto before = [&](const Silent& one, const Silent& other) {
    return one.speaks && (!other.speaks || inside[one.address] < inside[other.address]);
  };
  while (true) {
    const auto next = std::min_element(silent_.begin(), silent_.end(), before);
    waiting_ = next != silent_.end() && next->speaks;
    if (!waiting_ || entering >= limits_.entering_max) return;
    ++entering;
    ++inside[next->address];
    HandOverOne(std::move(*next));
    silent_.erase(next);
  }
}

absl::flat_hash_map<uint64_t, size_t> FrontDoor::Entering(absl::Time now) const {
  absl::flat_hash_map<uint64_t, size_t> entering;
  for (auto it = handed_.rbegin(); it != handed_.rend() && now - it->since < limits_.entering_for; ++it) {
    if (!it->connection->member()) ++entering[it->address];
  }
  return entering;
}

void FrontDoor::HandOverOne(Silent silent) {
  RECON_CHECK_GE(silent.fd.get(), 0);
  if (!rates_.Take(silent.address, Now())) {
    return SayRefused(silent.peer, absl::StrCat("its address begins more than ", limits_.begin_per_second_max,
                                                " connections a second"));
  }
  if (!MakeRoomForStranger()) {
    return SayRefused(silent.peer, absl::StrCat("there are ", limits_.strangers_max,
                                                " others that have just come and not shown what they are"));
  }
  Handed handed;
  handed.since = Now();
  handed.inode = InodeOf(silent.fd.get());
  handed.peer = std::move(silent.peer);
  handed.address = silent.address;
  handed.connection = connections_->Add(handed.peer);
  handed.fd = silent.fd.Release();
  handed_.push_back(handed);
  hand_over_(silent.listener, handed.fd);
  ++strangers_;
}

void FrontDoor::DropSilent(absl::Time now) {
  while (!silent_.empty() && now - silent_.front().since > limits_.silence_max) {
    SayRefused(silent_.front().peer,
               absl::StrCat("it has ", silent_.front().speaks ? "waited" : "said nothing", " for ",
                            absl::FormatDuration(limits_.silence_max)));
    silent_.pop_front();
  }
}

absl::Time FrontDoor::NextLook() const { return std::min(looked_ + look_every_, looked_at_all_ + kLook); }

void FrontDoor::LookAt(Handed* one, bool closely, uint64_t forgiven) {
  if (closely) one->received = BytesReceived(one->fd);
  const uint64_t understood = one->connection->understood();
  if (understood != one->understood) {
    one->understood = understood;
    one->received_then = one->received;
  }
  one->received_then = std::min(one->received, one->received_then + forgiven);
  one->view = {one->received - one->received_then, one->connection->member(), one->connection->calls()};
  if (one->cut) one->view = {0, one->view.member, 0};
  one->watched = !one->view.member && (one->view.bytes > kSomeBytes || one->view.calls > kSomeCalls);
}

void FrontDoor::Look(absl::Time now, bool all) {
  uint64_t forgiven = 0;
  if (all) {
    forgiven = static_cast<uint64_t>(std::llround(
        kForgivenBytesPerSecond * std::clamp(absl::ToDoubleSeconds(now - looked_at_all_), 0.0, 1.0)));
    looked_at_all_ = now;
  }
  looked_ = now;
  look_every_ = kLook;
  std::vector<ConnectionView> views;
  views.reserve(handed_.size());
  for (auto it = handed_.begin(); it != handed_.end();) {
    const bool closely = all || it->watched;
    if (closely && InodeOf(it->fd) != it->inode) {
      connections_->Remove(it->peer, it->connection.get());
      it = handed_.erase(it);
      continue;
    }
    LookAt(&*it, closely, forgiven);
    const ConnectionView& view = it->view;
    const bool much = view.bytes > kMuchBytes || view.calls > kManyCalls;
    if (!view.member && much) look_every_ = kLookSoon;
    views.push_back(view);
    ++it;
  }
  RECON_CHECK_EQ(views.size(), handed_.size());
  strangers_ = static_cast<size_t>(
      std::count_if(views.begin(), views.end(), [](const ConnectionView& one) { return !one.member; }));
  const std::vector<size_t> cut = WhichToCut(views, limits_);
  if (cut.empty()) return;
  size_t i = 0;
  for (Handed& one : handed_) {
    if (std::find(cut.begin(), cut.end(), i) != cut.end()) {
      one.cut = true;
      SayRefused(one.peer, absl::StrCat("it has sent ", views[i].bytes,
                                        " bytes since something of it was understood, and has ",
                                        views[i].calls, " calls open"));
      HangUp(one.fd, one.inode);
    }
    ++i;
  }
}

void FrontDoor::SayRefused(const std::string& peer, const std::string& why) {
  const absl::Time now = Now();
  if (now - said_ < kSayEvery) {
    ++unsaid_;
    return;
  }
  said_ = now;
  const uint64_t unsaid = std::exchange(unsaid_, 0);
  LogWarn("a connection{}{} is closed: {}{}", peer.empty() ? "" : " of ", peer, why,
          unsaid == 0 ? "" : absl::StrCat(" (and ", unsaid, " others were, for this or other reasons)"));
}

}  // namespace recon
