#include "common/rpc/wire_bytes.h"

#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <memory>

namespace recon {
namespace {

constexpr uint64_t kHeaderBytes = 14 + 20 + 20 + 12;

// One end of a connection.
struct End {
  in6_addr address{};  // IPv4 as IPv6 has it.
  uint16_t port = 0;
};

bool EndOf(const sockaddr_storage& socket, End* end) {
  if (socket.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(socket);
    end->address.s6_addr[10] = end->address.s6_addr[11] = 0xFF;
    std::memcpy(&end->address.s6_addr[12], &v4.sin_addr, sizeof(v4.sin_addr));
    end->port = ntohs(v4.sin_port);
    return true;
  }
  if (socket.ss_family != AF_INET6) return false;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(socket);
  end->address = v6.sin6_addr;
  end->port = ntohs(v6.sin6_port);
  return true;
}

bool EndsOf(int fd, End* here, End* there) {
  sockaddr_storage socket{};
  socklen_t size = sizeof(socket);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&socket), &size) != 0 || !EndOf(socket, there))
    return false;
  size = sizeof(socket);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&socket), &size) == 0 && EndOf(socket, here);
}

bool IsLoopback(const in6_addr& address) {
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

// Calls `see(fd, inode, here, there)` for each of the process' TCP connections to or from `ports`.
template <typename See>
void ForEachConnection(const std::set<uint16_t>& ports, const See& see) {
  const std::unique_ptr<DIR, int (*)(DIR*)> files(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = files == nullptr ? nullptr : readdir(files.get())) {
    const int fd = std::atoi(entry->d_name);
    struct stat status {};
    End here, there;
    if (fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode) || !EndsOf(fd, &here, &there)) continue;
    if (ports.count(here.port) + ports.count(there.port) > 0) see(fd, status.st_ino, here, there);
  }
}

}  // namespace

WireBytes WireByteCounter::Sample(const std::set<uint16_t>& ports) {
  ForEachConnection(ports, [this](int fd, uint64_t inode, const End&, const End&) {
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
    WireBytes& bytes = connections_[inode];
    bytes.sent = info.tcpi_bytes_sent + kHeaderBytes * info.tcpi_segs_out;
    bytes.received = info.tcpi_bytes_received + kHeaderBytes * info.tcpi_segs_in;
  });
  WireBytes total;
  for (const auto& [inode, bytes] : connections_) {
    total.sent += bytes.sent;
    total.received += bytes.received;
  }
  return total;
}

bool OnOneMachine(const std::set<uint16_t>& ports) {
  size_t here_only = 0, all = 0;
  ForEachConnection(ports, [&](int, uint64_t, const End& here, const End& there) {
    ++all;
    if (IsLoopback(there.address) || IN6_ARE_ADDR_EQUAL(&here.address, &there.address)) ++here_only;
  });
  return all > 0 && here_only == all;
}

}  // namespace recon
