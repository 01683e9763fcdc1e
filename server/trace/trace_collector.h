#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "proto/trace.pb.h"

namespace recon {

// The head's part in a trace: who records, for how long, what has been delivered of it, and who has not.
//
// Threads: thread-safe. Times are MonotonicNanos() of the head.
class TraceCollector {
 public:
  // Takes what the client is to get, in that order; false if it has too much already, and this is left out.
  // Called under the lock: must not block, nor call back.
  using Sink = std::function<bool(const TraceUpdate& update)>;

  // From now on there is a trace, of a client that is called so, and no other one can begin.
  // FailedPrecondition if there is one.
  absl::Status Begin(const std::string& client, Sink sink);
  // It is recorded from now on, and counts from `begin_ns` to `end_ns`; these are asked to deliver.
  void Announce(const std::vector<TraceMember>& members, int64_t begin_ns, int64_t end_ns);
  // What members are told: 0 if there is none, or its time is over.
  struct Order {
    uint64_t trace = 0;
    absl::Duration left;
  };
  Order order(int64_t now_ns) const;

  // FailedPrecondition if that is not the trace that is recorded.
  absl::Status CheckCurrent(uint64_t trace) const;
  // InvalidArgument for a piece that is none; FailedPrecondition as above.
  absl::StatusOr<TraceReceipt> Deliver(TraceDelivery delivery, int64_t now_ns);

  // Who was asked, or has delivered anything, has delivered all that there will be.
  bool complete() const;
  // The trace is over: says whose spans lack. Another one can begin.
  void End(int64_t now_ns);

 private:
  // A process: role, name, machine, number of the process.
  using Key = std::tuple<int, std::string, std::string, uint32_t>;
  struct Progress {
    TraceMember member;
    int64_t heard_ns = 0;
    uint64_t spans = 0;
    bool last = false;
    bool cut_short = false;  // A bound was reached.
    bool left_out = false;   // The client did not read fast enough.
  };

  absl::Status CheckIsCurrent(uint64_t trace) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::vector<TraceGap> Gaps(int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a process with that role and name has delivered anything.
  bool HeardOf(const TraceMember& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  uint64_t trace_ ABSL_GUARDED_BY(mu_) = 0;  // 0: there is none.
  std::string client_ ABSL_GUARDED_BY(mu_);
  Sink sink_ ABSL_GUARDED_BY(mu_);
  int64_t end_ns_ ABSL_GUARDED_BY(mu_) = 0;  // 0: not announced yet.
  std::vector<TraceMember> asked_ ABSL_GUARDED_BY(mu_);
  std::map<Key, Progress> members_ ABSL_GUARDED_BY(mu_);
  uint64_t spans_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recon
