#pragma once

#include <cstdint>
#include <map>
#include <set>

namespace recon {

// Bytes as a network interface counts them: TCP payload, what was sent again, and 66 bytes of headers a
// segment (Ethernet 14, IPv4 20, TCP 20 and its timestamps 12).
struct WireBytes {
  uint64_t sent = 0;
  uint64_t received = 0;
};

// Counts what this process' TCP connections to or from some ports have carried, as the kernel knows it
// (TCP_INFO): encryption, retries, heartbeats and acknowledgements are in it, whoever opened the connection.
//
// Threads: one. A connection that closed between two samples counts as of the last one.
class WireByteCounter {
 public:
  // Totals since the process started.
  WireBytes Sample(const std::set<uint16_t>& ports);

 private:
  std::map<uint64_t, WireBytes> connections_;  // By the socket's inode.
};

// Whether this process' TCP connections to or from some ports all have this machine at both ends; not if
// there are none. Thread-safe.
bool OnOneMachine(const std::set<uint16_t>& ports);

}  // namespace recon
