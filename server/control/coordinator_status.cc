// Of Coordinator: what it tells of the job.

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clipped_text.h"
#include "common/base/copied_bytes.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/control/coordinator.h"
#include "server/scheduler/device_share.h"

namespace recon {
namespace {

constexpr absl::Duration kSharesInterval = absl::Milliseconds(500);

// What the data plane of this server has done since its process began.
void ShowPushes(const ParamStats& stats, const LogUse& log, StatusReply* reply) {
  reply->set_recover_ms(stats.recover_ms);
  reply->set_first_push_ms(stats.first_push_ms);
  reply->set_updates(stats.updates);
  reply->set_pushes(stats.pushes);
  reply->set_duplicate_pushes(stats.duplicates);
  reply->set_frontier_step(stats.frontier_step);
  reply->set_log_bytes(log.disk_bytes);
  reply->set_log_budget_bytes(log.budget_bytes);
  for (const CopyReason reason : kCopyReasons) {
    CopiedBytesStatus* copied = reply->add_copied_bytes();
    copied->set_why(CopyReasonName(reason));
    copied->set_bytes(CopiedBytes(reason));
  }
}

// And of one worker's pushes.
void ShowPushesOf(const WorkerPushStats& stats, MemberStatus* out) {
  out->set_next_step(stats.next_step);
  out->set_staleness_mean(stats.staleness_mean);
  out->set_staleness_max(stats.staleness_max);
  for (const uint64_t count : stats.staleness_counts) out->add_staleness_counts(count);
  out->set_pushes(stats.pushes);
  out->set_late_steps(stats.late_steps);
}

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

void Coordinator::NoteShares(absl::Time now) {
  shares_at_ = now + kSharesInterval;
  const ParamStats stats = ports_.params->GetStats();
  for (const auto& [worker, member] : membership_.members()) {
    const auto found = stats.workers.find(worker);
    if (member.gone || found == stats.workers.end()) continue;
    shares_.Report(worker, member.progress.step_work(), found->second.waiting_seconds, now);
  }
  if (stats.non_finite) NoteNonFinite(*stats.non_finite);
  if (stats.unlike_rates) NoteUnlikeRates(*stats.unlike_rates);
  const uint64_t moved = stats.pushes + work_.samples_completed() + evaluations_.entries().size();
  const bool say = standing_.watch.Note(moved, WhatIsExpected(), now);
  standing_.waits_for = standing_.watch.Said(now);
  if (!standing_.waits_for.empty()) {
    standing_.waits_for = ClippedText(absl::StrCat(standing_.waits_for, ": ", WhatIsMissing(now)),
                                      limits::kProgressTextBytesMax);
  }
  if (say) LogWarn("{}", standing_.waits_for);
  if (ports_.others != nullptr) ports_.others->TellWaits(standing_.waits_for);
  metrics_.ShowStanding(standing_.watch.Standing(now), standing_.watch.NotBegun(now),
                        ports_.params->log_use());
}

Expected Coordinator::WhatIsExpected() const {
  if (lifecycle_.finished() || lifecycle_.draining()) return Expected::kNothing;
  return lifecycle_.started() ? Expected::kToGoOn : Expected::kToBegin;
}

std::string Coordinator::WhatIsMissing(absl::Time now) const {
  JobNeeds needs;
  needs.begun = lifecycle_.started();
  if (ports_.others != nullptr) {
    needs.missing_servers = ports_.others->Missing();
    needs.full_logs = ports_.others->state().full_logs;
  }
  needs.epoch_error = epoch_error_;
  needs.start_error = standing_.start_error;
  needs.lacks_values = !parameters_.HasValues();
  if (const auto asked = parameters_.asked(); asked && membership_.Find(*asked) != nullptr)
    needs.values_from = membership_.Find(*asked)->name;
  needs.log = ports_.params->log_use();
  needs.log.awaits_snapshot = needs.log.awaits_snapshot || parameters_.awaits_snapshot();
  needs.saving = lifecycle_.finishing() || (parameters_.HasValues() && !parameters_.saved());
  const SnapshotStatus snapshot = ports_.snapshots->status();
  needs.snapshot_takes = absl::Seconds(snapshot.under_way_seconds());
  needs.snapshot_directory = options_.snapshot_dir;
  needs.snapshot_error = snapshot.last_error();
  needs.workers_alive = membership_.alive();
  needs.workers_min = static_cast<int>(job_.workers_min());
  for (const auto& [worker, member] : membership_.members()) {
    if (member.gone) continue;
    const size_t leases = work_.HeldBy(worker).leases;
    const bool awaited = job_.bound() >= 0 && ports_.steps->awaited(worker);
    if (leases == 0 && !awaited) continue;
    needs.holders.push_back({member.name, leases, now - member.last_heard, awaited || job_.bound() < 0});
  }
  return WhatJobWaitsFor(needs);
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
  reply.set_restored_generation(restored_generation_);
  *reply.mutable_snapshot() = ports_.snapshots->status();
  reply.set_divergence(divergence_.taken());
  if (rollback_.history() != 0) *reply.mutable_rollback() = rollback_;
  if (ports_.others != nullptr) {
    for (ServerStatus& server : ports_.others->Status(now)) *reply.add_servers() = std::move(server);
    reply.set_mixed_state(ports_.others->state().mixed_state);
  }
  ShowPushes(stats, ports_.params->log_use(), &reply);
  ShowTuning(&reply);
  ShowProgress(now, &reply);
  ShowMembers(stats, now, &reply);
  return reply;
}

void Coordinator::ShowTuning(StatusReply* reply) const {
  reply->set_policy_reason(auto_policy_.reason());
  if (!codec_tuner_.in_use()) return;
  *reply->mutable_codec_choice() = codec_tuner_.choice();
  reply->set_codec_reason(codec_tuner_.reason());
  reply->set_codec_settled(codec_tuner_.settled());
}

void Coordinator::ShowProgress(absl::Time now, StatusReply* reply) const {
  if (const auto layout = ports_.params->layout(); layout != nullptr) {
    reply->set_model(layout->model().name());
    reply->set_parameters(layout->params());
    reply->set_shards(layout->shard_count());
  }
  if (record_.known()) {
    const uint64_t train_samples = record_.get().train_samples();
    reply->set_train_samples(train_samples);
    reply->set_samples_total(train_samples * job_.data_epochs());
    reply->set_samples_completed(work_.samples_completed());
    reply->set_data_epochs_completed(static_cast<double>(work_.samples_completed()) /
                                     static_cast<double>(train_samples));
  }
  for (const EvalEntry& entry : evaluations_.entries()) *reply->add_evaluations() = entry;
  reply->set_holds_up(WhoHoldsUp());
  if (const absl::Duration standing = standing_.watch.Standing(now); standing > absl::ZeroDuration()) {
    reply->set_standing_seconds(absl::ToDoubleSeconds(standing));
    reply->set_waits_for(WhatIsMissing(now));
  }
  if (const absl::Duration waits = standing_.watch.NotBegun(now); waits > absl::ZeroDuration()) {
    reply->set_not_begun_seconds(absl::ToDoubleSeconds(waits));
    reply->set_waits_for(WhatIsMissing(now));
  }
}

void Coordinator::ShowMembers(const ParamStats& stats, absl::Time now, StatusReply* reply) const {
  double samples_per_second = 0;
  for (const auto& [worker, member] : membership_.members()) {
    MemberStatus* out = reply->add_members();
    ShowMember(worker, member, out);
    out->set_heartbeat_age_ms(absl::ToDoubleMilliseconds(now - member.last_heard));
    bool active = false;
    const auto& known = member.gone ? last_stats_ : stats.workers;
    if (const auto found = known.find(worker); found != known.end()) {
      active = found->second.active;
      ShowPushesOf(found->second, out);
    }
    out->set_state(member.gone                        ? MEMBER_GONE
                   : membership_.suspect(member, now) ? MEMBER_SUSPECT
                   : active                           ? MEMBER_ACTIVE
                                                      : MEMBER_IDLE);
    if (!member.gone) samples_per_second += member.progress.samples_per_second();
  }
  reply->set_samples_per_second(samples_per_second);
}

void Coordinator::ShowMember(WorkerId worker, const Membership::Member& member, MemberStatus* out) const {
  out->set_name(member.name);
  out->set_worker(worker.value());
  out->set_incarnation(member.incarnation.value());
  out->set_device(member.device);
  out->set_codec(member.codec);
  out->set_simulated(member.simulated);
  if (member.gone) out->set_gone_why(member.gone_why);
  *out->mutable_progress() = member.progress;
  const LeaseScheduler::Holding holding = work_.HeldBy(worker);
  out->set_leases(static_cast<uint32_t>(holding.leases));
  out->set_splits(holding.splits);
  out->set_samples_completed(work_.samples_of(member.name));
  out->set_local_steps(PushBatchesOf(worker));
  LeaseShare lease = LeaseShareOf(member.progress.device_status());
  if (!lease.why.empty()) {
    out->set_lease_share(lease.share);
    out->set_lease_share_why(std::move(lease.why));
  }
  if (const StepShares::Share* share = shares_.Find(worker); share != nullptr) {
    out->set_waits_share(share->waits);
  }
}

}  // namespace recon
