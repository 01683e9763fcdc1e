#include "server/scheduler/lease_scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/data_epoch.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

bool Overlap(const Task& a, const Task& b) {
  return a.kind == b.kind && a.data_epoch == b.data_epoch && a.begin < b.end && b.begin < a.end;
}

Task TaskOf(const Completion& completion) {
  Task task;
  task.kind = completion.kind();
  task.data_epoch = completion.data_epoch();
  task.split = SplitId(completion.split());
  task.begin = completion.begin();
  task.end = completion.end();
  return task;
}

Lease LeaseOf(const Task& task, LeaseId id) {
  Lease lease;
  lease.set_lease(id.value());
  lease.set_kind(task.kind);
  lease.set_data_epoch(task.data_epoch);
  lease.set_split(task.split.value());
  lease.set_splits(task.splits);
  lease.set_begin(task.begin);
  lease.set_end(task.end);
  return lease;
}

absl::Status NotHeld(LeaseId lease) {
  return absl::AbortedError(absl::StrCat("lease ", lease.value(), " is not held by this worker any more"));
}

}  // namespace

absl::Status LeaseScheduler::Start(const SplitQueue::Config& config) {
  RECON_CHECK(leases_.Holders().empty(), "there is other work, while some is done");
  RECON_ASSIGN_OR_RETURN(queue_, SplitQueue::Create(config));
  return absl::OkStatus();
}

absl::Status LeaseScheduler::Restore(const Completion& completion) {
  RECON_CHECK(queue_.has_value());
  const auto task = queue_->Find(completion.kind(), completion.data_epoch(), SplitId(completion.split()));
  if (!task.ok() || task->begin != completion.begin() || task->end != completion.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("split ", completion.split(), " of data epoch ",
                     ShownDataEpoch(completion.data_epoch(), completion.kind() == LEASE_TRAIN),
                     " is completed but not part of this job: was --data-epochs lowered?"));
  }
  queue_->Complete(*task, completion.eval());
  Count(completion);
  return absl::OkStatus();
}

std::optional<Lease> LeaseScheduler::Grant(WorkerId worker, uint32_t splits, absl::Time now,
                                           std::optional<uint64_t> pushes) {
  RECON_CHECK(queue_.has_value());
  const std::optional<Task> task = queue_->Next(splits, /*ahead=*/!leases_.HeldBy(worker).empty());
  if (!task) return std::nullopt;
  return LeaseOf(*task, leases_.Grant(*task, worker, now, pushes));
}

std::vector<Lease> LeaseScheduler::AdoptAll(const google::protobuf::RepeatedPtrField<Lease>& held,
                                            WorkerId worker, absl::Time now) {
  RECON_CHECK(queue_.has_value());
  const std::vector<LeaseTable::Lease> before = leases_.LeasesOf(worker);
  TakeBackAllOf(worker);
  std::vector<Lease> adopted;
  for (const Lease& claimed : held) {
    const std::optional<Task> task = TakeClaimed(claimed);
    if (!task) continue;
    // Whatever number it says that the lease had.
    std::optional<uint64_t> pushes;
    for (const LeaseTable::Lease& lease : before) {
      if (Overlap(lease.task, *task)) pushes = lease.pushes;
    }
    adopted.push_back(LeaseOf(*task, leases_.Grant(*task, worker, now, pushes)));
  }
  return adopted;
}

std::optional<Task> LeaseScheduler::TakeClaimed(const Lease& held) {
  // No lease that was ever granted is larger.
  if (held.splits() > limits::kLeaseSplitsMax) return std::nullopt;
  const auto task =
      queue_->Find(held.kind(), held.data_epoch(), SplitId(held.split()), std::max(1u, held.splits()));
  return task.ok() ? queue_->TakeRest(*task) : std::nullopt;
}

absl::Status LeaseScheduler::GiveBack(LeaseId lease, WorkerId worker) {
  const std::optional<Task> task = leases_.Take(lease, worker);
  if (!task) return NotHeld(lease);
  queue_->Return(*task);
  return absl::OkStatus();
}

size_t LeaseScheduler::TakeBackAllOf(WorkerId worker) {
  const std::vector<Task> tasks = leases_.TakeAllOf(worker);
  for (const Task& task : tasks) queue_->Return(task);
  return tasks.size();
}

std::vector<LeaseTable::Lease> LeaseScheduler::TakeBackExpired(absl::Time now) {
  std::vector<LeaseTable::Lease> expired = leases_.TakeExpired(now);
  for (const LeaseTable::Lease& lease : expired) queue_->Return(lease.task);
  return expired;
}

absl::StatusOr<std::optional<Task>> LeaseScheduler::NextOf(LeaseId lease, WorkerId worker,
                                                           SplitId split) const {
  const Task* held = leases_.Find(lease, worker);
  if (held == nullptr) return NotHeld(lease);
  if (split == held->split) {
    RECON_ASSIGN_OR_RETURN(const Task first, queue_->Find(held->kind, held->data_epoch, split));
    return first;
  }
  // Said again: the reply was lost.
  if (split.value() + 1 == held->split.value() && queue_->done(held->kind, held->data_epoch, split)) {
    return std::nullopt;
  }
  return absl::AbortedError(
      absl::StrCat("split ", split.value(), ": the next of the lease is ", held->split.value()));
}

absl::Status LeaseScheduler::CheckPushed(LeaseId lease, WorkerId worker, uint64_t pushes) {
  RECON_CHECK(leases_.Holds(lease, worker));
  if (leases_.PushedFor(lease, pushes)) return absl::OkStatus();
  RECON_RETURN_IF_ERROR(GiveBack(lease, worker));
  return absl::AbortedError(absl::StrCat("nothing was pushed since lease ", lease.value(),
                                         " was granted: its samples are done again"));
}

void LeaseScheduler::Complete(LeaseId lease, WorkerId worker, const Completion& completion) {
  MarkDone(lease, worker, completion);
  Count(completion);
}

void LeaseScheduler::NoteDoneBefore(LeaseId lease, WorkerId worker, const Completion& completion) {
  MarkDone(lease, worker, completion);  // Or everybody would wait for it.
  if (const std::optional<Task> rest = leases_.Take(lease, worker)) queue_->Return(*rest);
}

void LeaseScheduler::MarkDone(LeaseId lease, WorkerId worker, const Completion& completion) {
  const Task task = TaskOf(completion);
  const bool was_first = leases_.TakeFirst(lease, worker, task);
  RECON_CHECK(was_first, "a split is completed that is not the first of its lease");
  const bool is_new = queue_->Complete(task, completion.eval());
  RECON_CHECK(is_new, "a split that is done was leased");
}

void LeaseScheduler::Count(const Completion& completion) {
  if (completion.kind() != LEASE_TRAIN) return;
  samples_of_[completion.worker()] += completion.end() - completion.begin();
}

LeaseScheduler::Holding LeaseScheduler::HeldBy(WorkerId worker) const {
  Holding holding;
  for (const LeaseId lease : leases_.HeldBy(worker)) {
    const Task& task = *leases_.Find(lease, worker);
    ++holding.leases;
    holding.splits += task.splits;
    holding.trains = holding.trains || task.kind == LEASE_TRAIN;
  }
  return holding;
}

std::optional<EvalResult> LeaseScheduler::Evaluation(uint32_t data_epochs) const {
  return queue_ ? queue_->Evaluation(data_epochs) : std::nullopt;
}

uint64_t LeaseScheduler::samples_of(const std::string& worker_name) const {
  const auto found = samples_of_.find(worker_name);
  return found == samples_of_.end() ? 0 : found->second;
}

}  // namespace recon
