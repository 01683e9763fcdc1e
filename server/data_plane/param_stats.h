#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"

namespace recon {

// What the data plane has counted of one worker since it was admitted.
struct WorkerPushStats {
  uint64_t pushes = 0;
  uint64_t next_step = 0;
  bool active = false;
  uint64_t staleness_pushes = 0;  // Those whose staleness is known: the mean's.
  double staleness_mean = 0;      // In updates of a shard between the gradient's parameters and its apply.
  uint64_t staleness_max = 0;
  std::vector<uint64_t> staleness_counts;  // As MemberStatus has them.
  double waiting_seconds = 0;              // Replies waited for other workers' pushes, the sum.
  uint64_t late_steps = 0;                 // Closed without its push, which a quorum did not wait for.
};

// An update after which a parameter was seen not to be finite.
struct NonFiniteUpdate {
  WorkerId worker;  // Whose push it was; of a synchronous step, whose gradient was the largest.
  uint64_t step = 0;
  bool large = false;  // Its gradient was so large that it is the cause; else that may be some updates older.
  std::string tensor;
  absl::Time wall;  // When that was found, by the time of day.
};

// Workers whose learning rates are not alike: a synchronous step goes by the first's.
struct UnlikeRates {
  WorkerId first, other;
  double first_rate = 0, other_rate = 0;
  uint64_t step = 0;
};

// What the data plane of one server has counted.
struct ParamStats {
  uint64_t pushes = 0;
  uint64_t updates = 0;  // Of the shard that had most, since the job began.
  uint64_t duplicates = 0;
  uint64_t sequence = 0;
  uint64_t frontier_step = 0;
  double recover_ms = 0;     // From the server's begin to its first acknowledged push; 0 until then.
  double first_push_ms = 0;  // The same without the time in which no worker had come.
  std::map<WorkerId, WorkerPushStats> workers;
  std::optional<NonFiniteUpdate> non_finite;  // The first that was found since the last rollback.
  std::optional<UnlikeRates> unlike_rates;    // The first that were found.
};

}  // namespace recon
