#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/control.pb.h"
#include "server/scheduler/lease_table.h"
#include "server/scheduler/split_queue.h"

namespace recon {

// Gives splits to workers, and takes them back: a queue of splits, and the leases on those that are taken.
// Every split that the queue has as taken is part of exactly one lease; when a lease ends, what of it is not
// completed is free again.
//
// Threads: none of its own; the caller serializes. No clock: `now` is an argument. Nothing is stored: a
// caller makes a completion durable between NextOf() and Complete().
class LeaseScheduler {
 public:
  // What a worker works on.
  struct Holding {
    size_t leases = 0;
    uint32_t splits = 0;  // Of all of them, not completed.
    bool trains = false;  // One of them is of training data.
  };

  // Lease numbers start above `first_lease`, as LeaseTable's.
  LeaseScheduler(absl::Duration lease_duration, uint64_t first_lease)
      : leases_(lease_duration, first_lease) {}

  // What there is to do; may be said again as long as there is no lease. InvalidArgument as
  // SplitQueue::Create(). Everything below that gives or takes work comes after it.
  absl::Status Start(const SplitQueue::Config& config);
  // A split that was completed before this process began, training before evaluations. FailedPrecondition if
  // it is not part of the job.
  absl::Status Restore(const Completion& completion);

  // Up to `splits` splits for the worker; nothing if none is free. `pushes`: as LeaseTable::Grant().
  std::optional<Lease> Grant(WorkerId worker, uint32_t splits, absl::Time now,
                             std::optional<uint64_t> pushes);
  // Ends the worker's leases, and gives it back what it says it works on: what is left of each, under a new
  // number. Not what is done, given to another one, or no work of this job. A lease that it held here counts
  // only with a push since it was granted, as before; of others, of the server before this one, that is not
  // known.
  std::vector<Lease> AdoptAll(const google::protobuf::RepeatedPtrField<Lease>& held, WorkerId worker,
                              absl::Time now);
  void Renew(LeaseId lease, WorkerId worker, absl::Time now) { leases_.Renew(lease, worker, now); }

  // Its worker gives it up. Aborted if it does not hold it.
  absl::Status GiveBack(LeaseId lease, WorkerId worker);
  // Ends leases: of one worker, returning how many; or those that are not renewed, returning them.
  size_t TakeBackAllOf(WorkerId worker);
  std::vector<LeaseTable::Lease> TakeBackExpired(absl::Time now);

  // The split that a worker says it has completed: the first one of its lease. Nothing if it has said so
  // before. Aborted if it does not hold the lease, or the split is not the lease's first.
  absl::StatusOr<std::optional<Task>> NextOf(LeaseId lease, WorkerId worker, SplitId split) const;
  // Aborted if nothing was pushed since a lease that the worker holds was granted: then it ends, since none
  // of its samples is in any parameters. `pushes` have come of the worker.
  absl::Status CheckPushed(LeaseId lease, WorkerId worker, uint64_t pushes);
  // The first split of a lease that the worker holds is done.
  void Complete(LeaseId lease, WorkerId worker, const Completion& completion);
  // It turns out that it was done before, by whomever: it counts as done, and the lease ends.
  void NoteDoneBefore(LeaseId lease, WorkerId worker, const Completion& completion);

  bool Holds(LeaseId lease, WorkerId worker) const { return leases_.Holds(lease, worker); }
  Holding HeldBy(WorkerId worker) const;
  std::set<WorkerId> Holders() const { return leases_.Holders(); }

  // As SplitQueue's; of nothing before Start().
  bool all_given(uint32_t data_epoch) const { return !queue_ || queue_->all_given(data_epoch); }
  uint32_t free_splits() const { return queue_ ? queue_->free_splits() : 0; }
  bool finished() const { return queue_ && queue_->finished(); }
  uint32_t data_epoch() const { return queue_ ? queue_->data_epoch() : 0; }
  bool begun(uint32_t data_epoch) const { return queue_ && queue_->begun(data_epoch); }
  uint64_t samples_completed() const { return queue_ ? queue_->samples_completed() : 0; }
  std::optional<EvalResult> Evaluation(uint32_t data_epochs) const;
  // Training samples that workers of this name have completed.
  uint64_t samples_of(const std::string& worker_name) const;

 private:
  // What is left of the work that a worker says it holds, taken from the queue; nothing as AdoptAll() says.
  std::optional<Task> TakeClaimed(const Lease& held);
  // Takes the split out of its lease and marks it as done.
  void MarkDone(LeaseId lease, WorkerId worker, const Completion& completion);
  void Count(const Completion& completion);

  std::optional<SplitQueue> queue_;
  LeaseTable leases_;
  std::map<std::string, uint64_t> samples_of_;
};

}  // namespace recon
