#include "tests/support/link_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace recon {
namespace {

constexpr int kPollMs = 20;
constexpr size_t kWaitingMax = 256 << 10;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

void NoDelay(int fd) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

}  // namespace

LinkProxy::LinkProxy(std::string target)
    : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), target_(std::move(target)) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 64) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw std::runtime_error("no port for a proxy");
  }
  address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  thread_ = std::thread([this] { Run(); });
}

LinkProxy::~LinkProxy() {
  stopping_ = true;
  thread_.join();
  for (const Connection& connection : connections_) {
    close(connection.near);
    close(connection.far);
  }
  close(listener_);
}

void LinkProxy::Accept() {
  const int near = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (near < 0) return;
  int port = 0;
  {
    MutexLock lock(&mu_);
    port = std::atoi(target_.substr(target_.rfind(':') + 1).c_str());
  }
  // Loopback answers at once, one way or the other.
  const int far = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in to = Loopback(port);
  if (connect(far, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    close(near);
    close(far);
    return;
  }
  fcntl(far, F_SETFL, O_NONBLOCK);
  NoDelay(near);
  NoDelay(far);
  connections_.push_back({near, far, {near, far}, {far, near}});
}

// False when the connection is broken.
bool LinkProxy::Move(Pipe* pipe, bool readable) {
  if (readable && !pipe->ended && pipe->waiting.size() < kWaitingMax) {
    char buffer[65536];
    const ssize_t size = recv(pipe->from, buffer, sizeof buffer, 0);
    if (size > 0) pipe->waiting.append(buffer, static_cast<size_t>(size));
    if (size < 0 && errno != EAGAIN && errno != EINTR) return false;
    pipe->ended = size == 0;
  }
  if (!pipe->waiting.empty()) {
    const ssize_t size = send(pipe->to, pipe->waiting.data(), pipe->waiting.size(), MSG_NOSIGNAL);
    if (size > 0) pipe->waiting.erase(0, static_cast<size_t>(size));
    if (size < 0 && errno != EAGAIN && errno != EINTR) return false;
  }
  if (pipe->ended && pipe->waiting.empty() && !std::exchange(pipe->passed_on, true))
    shutdown(pipe->to, SHUT_WR);
  return true;
}

void LinkProxy::Run() {
  while (!stopping_) {
    if (cut_) {
      poll(nullptr, 0, kPollMs);
      continue;
    }
    std::vector<pollfd> fds = {{listener_, POLLIN, 0}};
    for (const Connection& c : connections_) {
      for (const Pipe* pipe : {&c.up, &c.down}) {
        // Negative: not looked at, and no reason to wake up.
        const bool reads = !pipe->ended && pipe->waiting.size() < kWaitingMax;
        fds.push_back({reads ? pipe->from : -1, POLLIN, 0});
        fds.push_back({pipe->waiting.empty() ? -1 : pipe->to, POLLOUT, 0});
      }
    }
    if (poll(fds.data(), fds.size(), kPollMs) <= 0 || cut_) continue;
    size_t i = 1;
    for (auto c = connections_.begin(); c != connections_.end(); i += 4) {
      const bool up_ok = Move(&c->up, (fds[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0);
      const bool down_ok = Move(&c->down, (fds[i + 2].revents & (POLLIN | POLLHUP | POLLERR)) != 0);
      const bool over = c->up.passed_on && c->down.passed_on;
      if (up_ok && down_ok && !over) {
        ++c;
        continue;
      }
      close(c->near);
      close(c->far);
      c = connections_.erase(c);
    }
    if ((fds[0].revents & POLLIN) != 0) Accept();
  }
}

}  // namespace recon
