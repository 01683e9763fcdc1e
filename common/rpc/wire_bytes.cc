#include "common/rpc/wire_bytes.h"

#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <memory>

namespace recon {
namespace {

constexpr uint64_t kHeaderBytes = 14 + 20 + 20 + 12;

uint16_t PortOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return 0;
}

bool HasPort(int fd, const std::set<uint16_t>& ports) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return false;
  if (ports.count(PortOf(address)) > 0) return true;
  size = sizeof(address);
  return getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
         ports.count(PortOf(address)) > 0;
}

}  // namespace

WireBytes WireByteCounter::Sample(const std::set<uint16_t>& ports) {
  const std::unique_ptr<DIR, int (*)(DIR*)> files(opendir("/proc/self/fd"), closedir);
  while (const dirent* entry = files == nullptr ? nullptr : readdir(files.get())) {
    const int fd = std::atoi(entry->d_name);
    struct stat status {};
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode) || !HasPort(fd, ports)) continue;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    WireBytes& bytes = connections_[status.st_ino];
    bytes.sent = info.tcpi_bytes_sent + kHeaderBytes * info.tcpi_segs_out;
    bytes.received = info.tcpi_bytes_received + kHeaderBytes * info.tcpi_segs_in;
  }
  WireBytes total;
  for (const auto& [inode, bytes] : connections_) {
    total.sent += bytes.sent;
    total.received += bytes.received;
  }
  return total;
}

}  // namespace recon
