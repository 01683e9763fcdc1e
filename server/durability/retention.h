#pragma once

#include <cstdint>
#include <vector>

#include "common/base/ids.h"

namespace recon {

// Which snapshots stay. Pure.
struct RetentionRules {
  int last = 5;    // The newest,
  int hourly = 0;  // the newest of each of the newest so many hours (UTC) that have one,
  int daily = 0;   // and of so many days.
};

struct RetentionCandidate {
  Generation generation;
  bool readable = true;  // A manifest that is damaged counts for nothing.
  bool pinned = false;
  int64_t created_unix_ms = 0;
};

// Those to delete, of `candidates` in ascending order. Pinned ones stay. Unreadable ones go when as many
// newer ones as `last` can be read.
std::vector<Generation> ToDelete(const std::vector<RetentionCandidate>& candidates,
                                 const RetentionRules& rules);

}  // namespace recon
