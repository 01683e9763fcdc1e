#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/base/stall_watch.h"

namespace recon {

// When a joined server says that it waits, and for what: for its head, or with the job. Pure: no clock, `now`
// is an argument; not thread-safe.
class HeadWatch {
 public:
  // What the server knows of its head.
  struct Seen {
    std::string head;       // host:port.
    absl::Time heard_at;    // When it was heard of last.
    std::string error;      // Why it cannot be reached; empty while there is a link.
    bool drains = false;    // It has said that it drains the job.
    std::string waits_for;  // As it said last.
  };

  // What is to be logged now; none: nothing.
  std::optional<std::string> Note(const Seen& seen, absl::Time now);

 private:
  StallWatch silence_;
  StallWatch job_{absl::ZeroDuration()};  // Whose head has waited before it says so.
};

}  // namespace recon
