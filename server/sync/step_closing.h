#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/base/ids.h"

namespace recon {

// Whose push it is: the process counts, not only its name.
using Contributor = std::pair<WorkerId, Incarnation>;

// A synchronous step's end for some shards, and whose pushes count.
struct StepClosing {
  uint64_t step = 0;
  std::vector<uint32_t> shards;           // Ascending.
  std::vector<Contributor> contributors;  // Ascending.
};

// What became of a part of a push at its shard.
enum class PushOutcome {
  kTaken,
  kDuplicate,  // This push id is in the ledger: nothing changed.
  kPending,    // This contribution is kept already: nothing changed.
  // Its step was closed without it, or is so far back that nobody knows: nothing changed, and never will.
  kLate,
};

}  // namespace recon
