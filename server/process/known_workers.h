#pragma once

#include <cstddef>
#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"

namespace recon {

// Which processes of workers a joined server has been told to admit, in a file that its next process reads:
// they send again what they have no reply to before that one has a place, and are no strangers. What they
// are allowed to does not depend on it. Thread-safe.
class KnownWorkers {
 public:
  explicit KnownWorkers(std::string path) : path_(std::move(path)) {}

  // What the file has; what of it means nothing is passed over, and a file that cannot be read has nothing.
  void Load();
  bool Has(Incarnation process) const;
  // The file has it when this returns, and no more than limits::kMembersMax others that came last. Errors are
  // those of the file; the process is known all the same.
  absl::Status Note(Incarnation process);

 private:
  bool Knows(Incarnation process) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  mutable Mutex mu_;
  std::deque<Incarnation> known_ ABSL_GUARDED_BY(mu_);  // Oldest first.
};

}  // namespace recon
