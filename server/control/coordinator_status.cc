// Of Coordinator: what it tells of the job.

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/copied_bytes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/control/coordinator.h"
#include "server/scheduler/device_share.h"

namespace recon {
namespace {

constexpr absl::Duration kSharesInterval = absl::Milliseconds(500);

}  // namespace

absl::StatusOr<CompletionsReply> Coordinator::Completions() const {
  RECON_ASSIGN_OR_RETURN(const std::vector<Completion> completions, ports_.journal->LoadCompletions());
  CompletionsReply reply;
  for (const Completion& completion : completions) {
    *reply.add_completions() = completion;
    reply.mutable_completions()
        ->rbegin()
        ->clear_after_sequence();  // Snapshots do not have it: the server's own.
  }
  return reply;
}

void Coordinator::NoteCompleted(const Completion& completion) {
  if (completion.kind() == LEASE_TRAIN)
    samples_of_[completion.worker()] += completion.end() - completion.begin();
}

void Coordinator::NoteShares(absl::Time now) {
  shares_at_ = now + kSharesInterval;
  const ParamStats stats = ports_.params->GetStats();
  for (const auto& [worker, member] : membership_.members()) {
    const auto found = stats.workers.find(worker);
    if (member.gone || found == stats.workers.end()) continue;
    shares_.Report(worker, member.progress.step_work(), found->second.waiting_seconds, now);
  }
  idle_.Note(stats.pushes + (queue_ ? queue_->samples_completed() : 0) + evaluations_.size(), now);
  WatchStall(stats.pushes, now);
}

void Coordinator::WatchStall(uint64_t pushes, absl::Time now) {
  const LogUse log = ports_.params->log_use();
  log_bytes_.Set(static_cast<double>(log.disk_bytes));
  log_budget_bytes_.Set(static_cast<double>(log.budget_bytes));
  if (phase() != PHASE_RUNNING || draining_ || finishing_) {
    stall_.Reset();
  } else if (stall_.Note(pushes + queue_->samples_completed() + evaluations_.size(), now)) {
    LogWarn("the job has not moved for {}: {}",
            absl::FormatDuration(absl::Trunc(stall_.Standing(now), absl::Seconds(1))), WhatIsMissing(now));
  }
  standing_seconds_.Set(absl::ToDoubleSeconds(stall_.Standing(now)));
}

std::string Coordinator::WhatIsMissing(absl::Time now) const {
  if (ports_.others != nullptr && !ports_.others->state().live) return ports_.others->Missing();
  const LogUse log = ports_.params->log_use();
  if (must_snapshot_ || log.awaits_snapshot) {
    const std::string error = ports_.snapshots->status().last_error();
    return absl::StrCat("it waits for a snapshot", error.empty() ? "" : ", and the last one failed: ", error);
  }
  if (log.full) {
    return absl::StrCat("it waits for a snapshot that makes room in the push log, which has ", log.disk_bytes,
                        " bytes of its ", log.budget_bytes);
  }
  if (membership_.alive() == 0) return "it waits for a worker: none is alive";
  std::vector<std::string> held;
  for (const auto& [worker, member] : membership_.members()) {
    if (member.gone) continue;
    const size_t leases = leases_.HeldBy(worker).size();
    if (leases == 0) continue;
    held.push_back(absl::StrCat(
        member.name, " (", leases, " leases, heard of ",
        absl::FormatDuration(absl::Trunc(now - member.last_heard, absl::Milliseconds(1))), " ago)"));
  }
  if (held.empty()) {
    return absl::StrCat("it waits for the ", membership_.alive(), " workers there are to take work");
  }
  return absl::StrCat("it waits for a push of ", absl::StrJoin(held, ", "));
}

std::string Coordinator::WhoHoldsUp() const {
  std::vector<StepShares::Worker> workers;
  for (const auto& [worker, member] : membership_.members()) {
    const StepShares::Share* share = shares_.Find(worker);
    if (member.gone || share == nullptr) continue;
    workers.push_back({member.name, member.progress.batch_seconds(), *share});
  }
  return StepShares::WhoHoldsUp(workers);
}

absl::StatusOr<StatusReply> Coordinator::Status(absl::Time now) {
  const ParamStats stats = ports_.params->GetStats();
  StatusReply reply;
  reply.set_phase(phase());
  reply.set_cluster_epoch(cluster_epoch_);
  *reply.mutable_job() = job_;
  reply.set_optimizer(optimizer_);
  reply.set_uptime_seconds(absl::ToDoubleSeconds(now - options_.process_began));
  reply.set_recover_ms(stats.recover_ms);
  reply.set_first_push_ms(stats.first_push_ms);
  reply.set_updates(stats.updates);
  reply.set_pushes(stats.pushes);
  reply.set_duplicate_pushes(stats.duplicates);
  reply.set_frontier_step(stats.frontier_step);
  reply.set_restored_generation(restored_generation_);
  *reply.mutable_snapshot() = ports_.snapshots->status();
  for (const CopyReason reason : kCopyReasons) {
    CopiedBytesStatus* copied = reply.add_copied_bytes();
    copied->set_why(CopyReasonName(reason));
    copied->set_bytes(CopiedBytes(reason));
  }
  if (policy_tuner_) reply.set_policy_reason(policy_tuner_->reason());
  if (codec_tuner_.in_use()) {
    *reply.mutable_codec_choice() = codec_tuner_.choice();
    reply.set_codec_reason(codec_tuner_.reason());
    reply.set_codec_settled(codec_tuner_.settled());
  }
  reply.set_holds_up(WhoHoldsUp());
  const LogUse log = ports_.params->log_use();
  reply.set_log_bytes(log.disk_bytes);
  reply.set_log_budget_bytes(log.budget_bytes);
  if (const absl::Duration standing = stall_.Standing(now); standing > absl::ZeroDuration()) {
    reply.set_standing_seconds(absl::ToDoubleSeconds(standing));
    reply.set_waits_for(WhatIsMissing(now));
  }
  reply.set_divergence(divergence_said_);
  if (rollback_.history() != 0) *reply.mutable_rollback() = rollback_;
  for (const EvalEntry& entry : evaluations_) *reply.add_evaluations() = entry;
  if (ports_.others != nullptr) {
    for (ServerStatus& server : ports_.others->Status(now)) *reply.add_servers() = std::move(server);
  }
  if (const auto layout = ports_.params->layout(); layout != nullptr) {
    reply.set_model(layout->model().name());
    reply.set_parameters(layout->params());
    reply.set_shards(layout->shard_count());
  }
  if (record_) {
    reply.set_train_samples(record_->train_samples());
    reply.set_samples_total(record_->train_samples() * job_.data_epochs());
    reply.set_samples_completed(queue_->samples_completed());
    reply.set_data_epochs_completed(static_cast<double>(queue_->samples_completed()) /
                                    static_cast<double>(record_->train_samples()));
  }
  for (const auto& [worker, member] : membership_.members()) {
    MemberStatus* out = reply.add_members();
    out->set_name(member.name);
    out->set_worker(worker.value());
    out->set_incarnation(member.incarnation.value());
    out->set_device(member.device);
    out->set_codec(member.codec);
    out->set_simulated(member.simulated);
    const std::vector<LeaseId> leases = leases_.HeldBy(worker);
    out->set_leases(static_cast<uint32_t>(leases.size()));
    uint32_t splits = 0;
    for (const LeaseId lease : leases) splits += leases_.Find(lease, worker)->splits;
    out->set_splits(splits);
    out->set_local_steps(PushBatchesOf(worker));
    LeaseShare lease = LeaseShareOf(member.progress.device_status());
    if (!lease.why.empty()) {
      out->set_lease_share(lease.share);
      out->set_lease_share_why(std::move(lease.why));
    }
    if (member.gone) out->set_gone_why(member.gone_why);
    out->set_heartbeat_age_ms(absl::ToDoubleMilliseconds(now - member.last_heard));
    *out->mutable_progress() = member.progress;
    const auto samples = samples_of_.find(member.name);
    out->set_samples_completed(samples == samples_of_.end() ? 0 : samples->second);
    if (const StepShares::Share* share = shares_.Find(worker); share != nullptr) {
      out->set_waits_share(share->waits);
    }
    bool active = false;
    const auto& known = member.gone ? last_stats_ : stats.workers;
    if (const auto found = known.find(worker); found != known.end()) {
      active = found->second.active;
      out->set_next_step(found->second.next_step);
      out->set_staleness_mean(found->second.staleness_mean);
      out->set_staleness_max(found->second.staleness_max);
      for (const uint64_t count : found->second.staleness_counts) out->add_staleness_counts(count);
      out->set_pushes(found->second.pushes);
      out->set_late_steps(found->second.late_steps);
    }
    out->set_state(member.gone                        ? MEMBER_GONE
                   : membership_.suspect(member, now) ? MEMBER_SUSPECT
                   : active                           ? MEMBER_ACTIVE
                                                      : MEMBER_IDLE);
    if (!member.gone) {
      reply.set_samples_per_second(reply.samples_per_second() + member.progress.samples_per_second());
    }
  }
  return reply;
}

}  // namespace recon
