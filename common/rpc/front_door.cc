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
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// Between two looks at what has come in; shorter while a stranger sends much.
constexpr absl::Duration kLook = absl::Milliseconds(100);
constexpr absl::Duration kLookSoon = absl::Milliseconds(10);
constexpr uint64_t kMuchBytes = uint64_t{64} << 10;
constexpr absl::Duration kSayEvery = absl::Seconds(10);
constexpr int kBacklog = 1024;
// After descriptors were short.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(50);

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};

// As PeerOf() has it: "10.0.0.2:4711", "[::1]:4711".
std::string Shown(const sockaddr_storage& address, socklen_t length) {
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
  const auto wrong = [&](const std::string& why) {
    return absl::UnavailableError(absl::StrCat(flag, " ", address, ": cannot listen: ", why));
  };
  RECON_ASSIGN_OR_RETURN(uint16_t port, PortOf(address));
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int looked_up = getaddrinfo(host.empty() ? nullptr : host.c_str(), nullptr, &hints, &found);
  if (looked_up != 0) return wrong(gai_strerror(looked_up));
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  std::string why = "it is no address of this host";
  for (const addrinfo* one = addresses.get(); one != nullptr; one = one->ai_next) {
    OwnedFd fd(socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd.get() < 0) continue;  // A kernel without IPv6.
    sockaddr_storage bound{};
    memcpy(&bound, one->ai_addr, one->ai_addrlen);
    if (one->ai_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port = htons(port);
    } else {
      reinterpret_cast<sockaddr_in*>(&bound)->sin_port = htons(port);
    }
    const int on = 1;
    const int off = 0;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));  // Inherited by what is accepted.
    // "[::]" is for IPv4, too.
    if (one->ai_family == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd.get(), reinterpret_cast<sockaddr*>(&bound), one->ai_addrlen) != 0 ||
        listen(fd.get(), kBacklog) != 0) {
      const bool other_family = errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT;
      if (errno == EADDRINUSE) return wrong("the port is taken");
      why = strerror(errno);
      if (other_family) continue;
      return wrong(why);
    }
    socklen_t length = sizeof(bound);
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length);
    port = ntohs(one->ai_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                            : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
    listeners_.push_back(std::move(fd));
  }
  if (listeners_.empty()) return wrong(why);
  port_ = port;
  return absl::OkStatus();
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
    for (const Silent& silent : silent_) polled.push_back({silent.fd.get(), POLLIN | POLLRDHUP, 0});
    const bool look = paused || !handed_.empty() || !silent_.empty();
    poll(polled.data(), polled.size(), look ? static_cast<int>(look_every_ / absl::Milliseconds(1)) : -1);
    if (stopping_.load()) return;
    std::vector<int> readable;
    for (size_t i = 1 + listeners_.size(); i < polled.size(); ++i) {
      if (polled[i].revents != 0) readable.push_back(polled[i].fd);
    }
    HandOverThoseWhoSpeak(readable);
    const absl::Time now = Now();
    DropSilent(now);
    if (now - looked_ >= look_every_) Look(now);
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
    silent_.push_back({std::move(fd), listener, shown, Now()});
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
    SayRefused(silent_.front().peer, "many have connected and said nothing, and it is the first of them");
    silent_.pop_front();
  }
  if (silent_.size() + handed_.size() < limits_.connections_max) return true;
  Look(Now());  // Some may have ended.
  if (silent_.size() + handed_.size() < limits_.connections_max) return true;
  // The oldest of those who do not belong to the job.
  const auto stranger = std::find_if(handed_.begin(), handed_.end(),
                                     [](const Handed& one) { return !one.connection->member(); });
  if (stranger == handed_.end()) return false;
  SayRefused(stranger->peer,
             "it is not of the job, and there are as many connections as this process may have");
  shutdown(stranger->fd, SHUT_RDWR);  // gRPC closes it.
  connections_->Remove(stranger->peer, stranger->connection.get());
  handed_.erase(stranger);
  return true;
}

void FrontDoor::HandOverThoseWhoSpeak(const std::vector<int>& readable) {
  if (readable.empty()) return;
  for (auto it = silent_.begin(); it != silent_.end();) {
    if (std::find(readable.begin(), readable.end(), it->fd.get()) == readable.end()) {
      ++it;
      continue;
    }
    char first = 0;
    const ssize_t bytes = recv(it->fd.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (bytes > 0) HandOverOne(std::move(*it));
    const bool still_silent = bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    it = still_silent ? std::next(it) : silent_.erase(it);
  }
}

void FrontDoor::HandOverOne(Silent silent) {
  Handed handed;
  handed.inode = InodeOf(silent.fd.get());
  handed.peer = std::move(silent.peer);
  handed.connection = connections_->Add(handed.peer);
  handed.fd = silent.fd.Release();
  handed_.push_back(handed);
  hand_over_(silent.listener, handed.fd);
}

void FrontDoor::DropSilent(absl::Time now) {
  while (!silent_.empty() && now - silent_.front().since > limits_.silence_max) {
    SayRefused(silent_.front().peer,
               absl::StrCat("it has said nothing for ", absl::FormatDuration(limits_.silence_max)));
    silent_.pop_front();
  }
}

void FrontDoor::Look(absl::Time now) {
  looked_ = now;
  handed_.remove_if([this](const Handed& one) {
    if (InodeOf(one.fd) == one.inode) return false;
    connections_->Remove(one.peer, one.connection.get());
    return true;
  });
  look_every_ = kLook;
  std::vector<ConnectionView> views;
  views.reserve(handed_.size());
  for (Handed& one : handed_) {
    one.received = BytesReceived(one.fd);
    const uint64_t understood = one.connection->understood();
    if (understood != one.understood) {
      one.understood = understood;
      one.received_then = one.received;
    }
    views.push_back({one.received - std::min(one.received, one.received_then), one.connection->member()});
    if (!views.back().member && views.back().bytes > kMuchBytes) look_every_ = kLookSoon;
  }
  const std::vector<size_t> cut = WhichToCut(views, limits_);
  if (cut.empty()) return;
  size_t i = 0;
  for (const Handed& one : handed_) {
    if (std::find(cut.begin(), cut.end(), i) != cut.end() && InodeOf(one.fd) == one.inode) {
      SayRefused(one.peer,
                 absl::StrCat("it has sent ", views[i].bytes, " bytes since something of it was understood"));
      shutdown(one.fd, SHUT_RDWR);
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
