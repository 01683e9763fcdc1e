#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "proto/control.pb.h"

namespace recon {

// Who may work on what, by the server's replies alone: a second book beside the coordinator's, kept by other
// code, to check it. Times are when the server answered.
class SimulatedGrants {
 public:
  SimulatedGrants(absl::Duration lease, absl::Duration evict) : lease_(lease), evict_(evict) {}

  // The worker was heard of, as this process.
  void Hear(const WorkerIdentity& worker, absl::Time now);
  // The worker is told this lease. Not empty if one of its splits is in another's hands, who was heard of,
  // and whose lease was renewed, lately enough: what is wrong, as a sentence.
  std::string Grant(const WorkerIdentity& worker, const Lease& lease, absl::Time now);
  void Renew(uint64_t lease, absl::Time now);
  // The split of the lease is completed.
  void Complete(uint64_t lease, uint32_t split);
  // The lease is nobody's any more.
  void End(uint64_t lease);
  // All leases of the worker are.
  void EndAllOf(uint32_t worker);

 private:
  using SplitKey = std::pair<uint32_t, uint32_t>;  // Data epoch, split.
  struct Granted {
    uint32_t worker = 0;
    uint64_t process = 0;
    absl::Time renewed;
    std::set<SplitKey> splits;
  };
  struct Heard {
    uint64_t process = 0;
    absl::Time at;
    std::set<uint64_t> leases;
  };

  bool Valid(const Granted& lease, absl::Time now) const;

  const absl::Duration lease_;
  const absl::Duration evict_;
  std::map<uint64_t, Granted> leases_;
  std::map<SplitKey, uint64_t> holders_;  // The lease that each split was granted with last.
  std::map<uint32_t, Heard> heard_;       // By worker.
};

}  // namespace recon
