#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/manifest.pb.h"
#include "server/cluster/cluster.h"
#include "server/cluster/mixed_state.h"
#include "server/process/place_recovery.h"
#include "server/process/rollbacks.h"
#include "server/process/server_process.h"

namespace recon {

// Looks, whenever all servers of a job are there, whether they are of one state. One that has lost its disk,
// or its log, comes back from a snapshot alone, and the others may have gone on from it. Then it has them all
// go back to that snapshot, or says how their shards differ, as --after-lost-disk says.
//
// Threads: the control lane. It blocks on store and disk when there is something to say.
class LostDisks {
 public:
  // The pointers outlive this. `head`: what this server's own state was recovered from.
  LostDisks(ServerProcess* process, const Cluster* cluster, Rollbacks* rollbacks, const RecoveredPlace& head)
      : process_(*process), cluster_(*cluster), rollbacks_(*rollbacks), head_(head) {}

  // Before an epoch is begun with all of them. True: the job goes back, and no epoch is to be begun.
  bool GoesBack();
  // How the shards differ, as a sentence; empty if they do not.
  const std::string& mixed_state() const { return mixed_state_; }

 private:
  // What came after a snapshot, as far as anyone knows.
  struct Since {
    uint64_t splits = 0;  // Completed training splits, and their samples.
    uint64_t samples = 0;
    uint64_t pushes = 0;  // In a log, and their samples.
    uint64_t push_samples = 0;
  };

  std::vector<PlaceState> Places() const;
  Since CountSince(const Manifest& snapshot) const;
  std::string Name(uint32_t server) const;
  std::string Names(const std::vector<uint32_t>& servers) const;
  // Of those servers: how many of all shards.
  std::string SharesOf(const std::vector<uint32_t>& servers) const;
  std::string SayMixed(const Manifest& snapshot, const std::vector<uint32_t>& lost,
                       const std::vector<uint32_t>& ahead, const Since& since) const;

  // Set in the constructor.
  ServerProcess& process_;
  const Cluster& cluster_;
  Rollbacks& rollbacks_;

  RecoveredPlace head_;
  std::string mixed_state_;
};

}  // namespace recon
