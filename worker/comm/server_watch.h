#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace recon {

// Which of a job's servers do not take a worker's frames, since when, and what they have said: one that was
// stopped in good order has said so, one that begins says so, and one that is dead says nothing.
//
// Thread-safe; its lock is a leaf. No clock: `now` is an argument.
class ServerWatch {
 public:
  // Where they are, host:port, by number; what is known of one that is elsewhere now is forgotten.
  void SetAddresses(const std::vector<std::string>& addresses);
  // What a frame to that server has come to; any answer of the server's own is a sign of life.
  void Note(size_t server, const absl::Status& outcome, absl::Time now);
  // Those that have been away for a while.
  struct Missing {
    std::vector<std::string> others;  // A clause for each but the head.
    std::string head;                 // The head's; empty if it takes frames.
    bool head_stopped = false;        // It has said that it drains.
  };
  Missing Away(absl::Time now) const;

 private:
  struct About {
    std::string address;
    absl::Time since = absl::InfiniteFuture();  // It takes frames.
    absl::Status error;                         // The last one.
    bool stopped = false;                       // It has said that it drains.
  };

  mutable Mutex mu_;
  std::vector<About> servers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
