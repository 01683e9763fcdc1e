#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/rpc/certificates.h"
#include "proto/control.pb.h"
#include "server/access/roles.h"
#include "server/control/policy.h"
#include "server/durability/retention.h"
#include "server/membership/membership.h"
#include "server/process/frame_listeners.h"

namespace recon {

// What recon-server was told, checked. Values come from flags, a --config file (TOML) and environment
// variables RECON_<FLAG>, in this order of precedence.
struct ServerFlags {
  // What survives a crash; see server/durability/LOG.md.
  enum class Durability { kSync, kLog, kSnapshot };
  // What comes of training that has gone wrong: values that are not finite, losses that stay far off.
  enum class OnDivergence { kIgnore, kStop, kRollback };
  // What comes of a server that has lost its disk while others of its job have not: all go back to its
  // snapshot, or each shard stays as new as it is.
  enum class AfterLostDisk { kTogether, kNewest };

  std::string listen = LoopbackAddress(kDefaultPort);
  std::string data;
  // Who may do what; see deploy/ACCESS.md.
  struct AccessRules {
    std::vector<RoleRule> allow;        // By certificate.
    std::string tokens;                 // File with everybody's; empty: none.
    bool names_by_certificate = false;  // A worker is called as its certificate is.
    bool open = false;                  // Everybody may join, without any secret.
  };
  // The snapshot that a new job takes its initial parameters from.
  struct InitialSnapshot {
    std::string directory;    // Empty: none.
    uint64_t generation = 0;  // 0: the newest.
  };
  InitialSnapshot from_snapshot;
  std::string metrics_address;
  std::string dashboard;    // HOST:PORT; empty: none.
  std::string tensorboard;  // Directory for event files; empty: none.
  AccessRules access;
  TlsFlags tls;  // The token is that of a server that joins, or the one that a head gives its job.
  FrameListeners::Options frames;
  bool exit_when_done = false;
  absl::Duration idle_timeout;  // 0: it waits for workers for ever.
  // Of a job with several servers: how many, the head among them;
  uint32_t servers = 1;
  absl::Duration replace_after;
  AfterLostDisk after_lost_disk = AfterLostDisk::kTogether;
  // and of another than the head: the head's address, and its own as workers reach it.
  std::string join;
  std::string advertise;
  std::string log_level = "info";
  int apply_threads = 0;
  // The job's flags and what they were given.
  struct JobSettings {
    std::map<std::string, std::string> values;  // For the log; see settings_changes.h.
    // Those of them that a worker's script has to agree with; how workers agree is not of it, as that may be
    // changed while the job runs.
    std::map<std::string, std::string> agreed;
    // What a worker's script asked for, and these settings go by where nobody else has said anything; and the
    // same command line with other wishes of this kind. InvalidArgument for a wish that means nothing.
    std::vector<FlagValue> proposed;
    std::function<absl::StatusOr<ServerFlags>(const std::vector<FlagValue>& proposed)> with_proposed;
  };
  JobSettings settings;

  OptimizerConfig optimizer;
  std::map<std::string, GroupPolicy> groups;
  PolicySettings policy;
  // But for what comes from the policy.
  JobConfig job;
  // A job that has begun keeps what it has.
  bool split_samples_by_default = false;

  // The push log, and what of it is durable.
  struct LogSettings {
    Durability durability = Durability::kLog;
    uint64_t segment_bytes = limits::kLogSegmentBytes;
    uint64_t bytes_max = 0;  // 0: half of what is free.
    absl::Duration replay_target;
  };
  LogSettings log;
  struct SnapshotSettings {
    std::string directory;  // Default: <data>/snapshots.
    absl::Duration interval;
    RetentionRules keep;
    int memory_percent = 100;  // Of the state, for pages that a snapshot keeps.
    int zstd_level = 1;
  };
  SnapshotSettings snapshots;
  OnDivergence on_divergence = OnDivergence::kIgnore;
  Membership::Timeouts timeouts;
  absl::Duration lease_target;  // 0: leases of one split.
};

// As --durability has it.
std::string DurabilityName(ServerFlags::Durability durability);
absl::StatusOr<ServerFlags::Durability> ParseDurability(const std::string& name);

// Parses the command line. Prints help, version or an error and returns the exit code instead of flags
// when the program should end: 0 after help, 2 after an error.
absl::StatusOr<ServerFlags> ParseServerFlags(int argc, char** argv, int* exit_code);

}  // namespace recon
