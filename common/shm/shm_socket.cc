#include "common/shm/shm_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

// The region, what wakes the worker, and what wakes the server.
constexpr int kFds = 3;
constexpr char kHello = 'R';
// What the worker says first: that, and its secret, or zeros.
constexpr size_t kGreetingBytes = 1 + WorkerSecret::kBytes;

absl::Status SystemError(const char* call) {
  return absl::UnavailableError(absl::StrCat("shared memory: ", call, ": ", strerror(errno)));
}

socklen_t AbstractAddress(const std::string& name, sockaddr_un* address) {
  *address = sockaddr_un{};
  address->sun_family = AF_UNIX;
  const size_t length =
      name.copy(address->sun_path + 1, sizeof(address->sun_path) - 1);  // After a zero byte.
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

absl::Status CheckPeerUser(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return SystemError("SO_PEERCRED");
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("shared memory: the other process is of user ", peer.uid, ", this one of ", geteuid()));
}

void SetTimeout(int socket, int seconds) {
  const timeval timeout{seconds, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
}

absl::Status SendFds(int socket, const int (&fds)[kFds], absl::string_view secret) {
  char greeting[kGreetingBytes] = {kHello};
  secret.copy(greeting + 1, WorkerSecret::kBytes);
  iovec data{greeting, kGreetingBytes};
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
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != static_cast<ssize_t>(kGreetingBytes))
    return SystemError("sendmsg");
  return absl::OkStatus();
}

absl::Status ReceiveFds(int socket, OwnedFd (&fds)[kFds], Incarnation* sender) {
  char greeting[kGreetingBytes] = {};
  iovec data{greeting, kGreetingBytes};
  constexpr size_t kRoom = kFds + 1;  // Alignment makes room for one more.
  alignas(cmsghdr) char control[CMSG_SPACE(kRoom * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (received < 0) return SystemError("recvmsg");
  std::vector<OwnedFd> all;  // Closed, if they are not what is expected.
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
    for (size_t at = 0; at + sizeof(int) <= header->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
      int fd = -1;
      memcpy(&fd, CMSG_DATA(header) + at, sizeof(fd));
      all.emplace_back(fd);
    }
  }
  if (received != static_cast<ssize_t>(kGreetingBytes) || greeting[0] != kHello || all.size() != kFds) {
    return absl::UnavailableError("shared memory: the other process hung up or speaks another language");
  }
  for (int i = 0; i < kFds; ++i) fds[i] = std::move(all[static_cast<size_t>(i)]);
  const absl::string_view secret(greeting + 1, WorkerSecret::kBytes);
  if (secret.find_first_not_of('\0') == absl::string_view::npos) return absl::OkStatus();
  RECON_ASSIGN_OR_RETURN(const WorkerSecret shown, WorkerSecret::FromBytes(secret));
  *sender = shown.incarnation();
  return absl::OkStatus();
}

// What wakes the other end is written to without waiting: a full pipe in its place would block the writer.
absl::Status CheckWakes(const OwnedFd& fd) {
  char what[64] = "";
  const ssize_t length = readlink(absl::StrCat("/proc/self/fd/", fd.get()).c_str(), what, sizeof(what) - 1);
  const bool is_event =
      length > 0 && absl::string_view(what, static_cast<size_t>(length)) == "anon_inode:[eventfd]";
  const int flags = fcntl(fd.get(), F_GETFL);
  if (is_event && flags >= 0 && (flags & O_NONBLOCK) != 0) return absl::OkStatus();
  return absl::UnavailableError(
      "shared memory: the other process gave something else than an eventfd to wake it by");
}

}  // namespace

absl::StatusOr<OwnedFd> ListenForShm(const std::string& name) {
  OwnedFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.get() < 0) return SystemError("socket");
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name, &address);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (errno == EADDRINUSE)
      return absl::AlreadyExistsError(absl::StrCat("shared memory: ", name, " is taken"));
    return SystemError("bind");
  }
  if (listen(listener.get(), SOMAXCONN) != 0) return SystemError("listen");
  return listener;
}

absl::StatusOr<AcceptedShm> AcceptShm(const OwnedFd& listener) {
  OwnedFd socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.get() < 0) return SystemError("accept");
  RECON_RETURN_IF_ERROR(CheckPeerUser(socket.get()));
  SetTimeout(socket.get(), 1);
  OwnedFd fds[kFds];
  AcceptedShm accepted;
  RECON_RETURN_IF_ERROR(ReceiveFds(socket.get(), fds, &accepted.sender));
  RECON_RETURN_IF_ERROR(CheckWakes(fds[1]));
  RECON_RETURN_IF_ERROR(CheckWakes(fds[2]));
  RECON_ASSIGN_OR_RETURN(auto region, ShmRegion::Attach(fds[0].Release()));
  if (send(socket.get(), &kHello, 1, MSG_NOSIGNAL) != 1) return SystemError("send");
  accepted.peer = std::make_unique<ShmPeer>(ShmPeer::Side::kServer, std::move(region), std::move(socket),
                                            std::move(fds[2]), std::move(fds[1]));
  return accepted;
}

absl::StatusOr<std::unique_ptr<ShmPeer>> ConnectShm(const std::string& name, absl::string_view secret) {
  OwnedFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) return SystemError("socket");
  SetTimeout(socket.get(), 1);
  sockaddr_un address;
  const socklen_t length = AbstractAddress(name, &address);
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return SystemError("connect");
  }
  RECON_RETURN_IF_ERROR(CheckPeerUser(socket.get()));
  RECON_ASSIGN_OR_RETURN(auto region, ShmRegion::Create());
  OwnedFd wake_me(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  OwnedFd wake_peer(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake_me.get() < 0 || wake_peer.get() < 0) return SystemError("eventfd");
  RECON_RETURN_IF_ERROR(SendFds(socket.get(), {region->fd(), wake_me.get(), wake_peer.get()}, secret));
  char hello = 0;
  const ssize_t received = recv(socket.get(), &hello, 1, 0);
  if (received < 0) return SystemError("recv");
  if (received == 0 || hello != kHello) {
    return absl::PermissionDeniedError("shared memory: the server has refused it; its log says why");
  }
  return std::make_unique<ShmPeer>(ShmPeer::Side::kWorker, std::move(region), std::move(socket),
                                   std::move(wake_me), std::move(wake_peer));
}

}  // namespace recon
