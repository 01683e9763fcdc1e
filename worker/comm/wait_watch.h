#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/stall_watch.h"

namespace recon {

// When a worker says that it waits, and for what: its own training thread for others, the head that does not
// answer, or the whole job. Pure: no clock, `now` is an argument; not thread-safe.
class WaitWatch {
 public:
  // What the worker knows.
  struct Seen {
    std::string head;                 // host:port.
    absl::Time answered_at;           // When the head has answered last; before that, the begin.
    absl::Status error;               // Why it has not since; OK if it has.
    bool stopped = false;             // The head has said that it drains the job.
    uint64_t progress = 0;            // Changes with each batch.
    const char* waits_for = nullptr;  // What the training thread waits for; null: it does not wait.
    std::vector<std::string> away;    // Servers that take no frames, as clauses.
    std::string head_says;            // That the job does not move, and why; empty: it moves.
  };

  // The line that is to be logged now; none: nothing.
  std::optional<std::string> Note(const Seen& seen, absl::Time now);

 private:
  bool NoteOwn(const Seen& seen, absl::Time now);

  StallWatch own_;
  StallWatch head_;
  StallWatch job_{absl::ZeroDuration()};  // Whose head has waited before it says so.
  bool computed_ = false;                 // Seen the last time.
  absl::Time said_at_ = absl::InfinitePast();
};

}  // namespace recon
