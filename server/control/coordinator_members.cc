// Of Coordinator: who is a member, from registration to departure.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/away_words.h"
#include "common/base/clipped_text.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/snapshot/safetensors.h"
#include "server/control/coordinator.h"
#include "server/control/proposal.h"
#include "server/control/registration.h"

namespace recon {

absl::StatusOr<WorkerId> Coordinator::CheckIdentity(const WorkerIdentity& identity, absl::Time now) {
  if (identity.cluster_epoch() != cluster_epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("cluster epoch ", identity.cluster_epoch(), ", the server's is ", cluster_epoch_));
  }
  const WorkerId worker(identity.worker());
  RECON_RETURN_IF_ERROR(membership_.Hear(worker, Incarnation(identity.incarnation()), now));
  return worker;
}

absl::StatusOr<RegisterReply> Coordinator::Register(const RegisterRequest& request, absl::Time now,
                                                    const std::string& peer) {
  RECON_RETURN_IF_ERROR(CheckRegistration(request));
  if (!record_.known() && request.proposed_size() > 0 && options_.proposed.empty() &&
      options_.adopt_proposal) {
    return options_.adopt_proposal(request);
  }
  RECON_RETURN_IF_ERROR(AgreeOnJob(request));
  RECON_RETURN_IF_ERROR(CatchUpWith(request, now));
  if (ports_.others != nullptr && !ports_.others->state().live) {
    const std::string missing = ports_.others->Missing();
    return JobWaitsError(missing.empty() ? "its servers, which begin together" : missing);
  }
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, ports_.journal->WorkerIdFor(request.name()));
  RECON_RETURN_IF_ERROR(CheckName(request, worker, peer, &membership_, options_.connected, now));
  RECON_RETURN_IF_ERROR(Enter(request, worker, peer, now));
  RECON_RETURN_IF_ERROR(NoteState(worker, request.state()));
  RegisterReply reply = TellOfJob(worker, now);
  AdoptLeases(request, worker, now, &reply);
  reply.set_start_step(StartStepOf(worker, request, reply));
  StartIfReady();
  return reply;
}

absl::Status Coordinator::AgreeOnJob(const RegisterRequest& request) {
  if (job_.means()) {
    RECON_RETURN_IF_ERROR(CheckHasState(request, job_.history()));
    RECON_RETURN_IF_ERROR(states_.Check(request.state()));
  }
  if (!record_.known()) RECON_RETURN_IF_ERROR(BeginJob(request));
  RECON_RETURN_IF_ERROR(parameters_.Adopt(request.model(), job_));
  RECON_RETURN_IF_ERROR(record_.CheckDataset(request));
  RECON_RETURN_IF_ERROR(record_.NoteFingerprint(request.data_fingerprint()));
  return CheckProposal(request, options_.settings);
}

absl::Status Coordinator::BeginJob(const RegisterRequest& request) {
  RECON_RETURN_IF_ERROR(CheckProposal(request, options_.settings));
  JobRecord record;
  *record.mutable_model() = request.model();
  record.set_train_samples(request.train_samples());
  record.set_test_samples(request.test_samples());
  record.set_split_samples(job_.split_samples());
  record.set_eval_split_samples(job_.eval_split_samples());
  record.set_seed(job_.seed());
  record.set_data_fingerprint(request.data_fingerprint());
  record.mutable_proposed()->Add(options_.proposed.begin(), options_.proposed.end());
  RECON_RETURN_IF_ERROR(StartQueue(record));
  RECON_RETURN_IF_ERROR(parameters_.Adopt(request.model(), job_));
  return record_.Begin(record);
}

absl::Status Coordinator::CatchUpWith(const RegisterRequest& request, absl::Time now) {
  // Its numbers are of a time when nobody waited for others. It cannot go back, and would wait until all have
  // come so far: they go on from there instead. (Of several servers each would have to.)
  const uint64_t step = FirstNewStep(request);
  const uint64_t frontier = ports_.steps->frontier();
  const uint64_t reach = frontier + limits::kStepsAheadMax + static_cast<uint64_t>(std::max(0, job_.bound()));
  if (job_.bound() < 0 || ports_.others != nullptr || step <= reach) return absl::OkStatus();
  if (step >= limits::kStepMax / 2) {
    return absl::InvalidArgumentError(absl::StrCat("next step ", step, ", the job's is ", frontier));
  }
  LogInfo("worker {} is at step {}, the job at {}: all go on from there", request.name(), step, frontier);
  return GoOnBy(ports_.params->rules(), step, now);
}

absl::Status Coordinator::Enter(const RegisterRequest& request, WorkerId worker, const std::string& peer,
                                absl::Time now) {
  Membership::Member member = MemberOf(request, peer);
  std::optional<Membership::Member> before;  // Who has the number now.
  if (const Membership::Member* found = membership_.Find(worker); found != nullptr && !found->gone) {
    before = *found;
  }
  const bool renews = before && before->incarnation == member.incarnation;
  if (renews) member.computes = before->computes;
  RECON_RETURN_IF_ERROR(membership_.Admit(worker, member, now));
  if (lifecycle_.started() && membership_.alive() >= static_cast<int>(job_.workers_min())) {
    RECON_RETURN_IF_ERROR(FixStepSamples());
  }
  if (before && !renews) Replace(worker, *before);
  Admit(worker, member.incarnation, request.next_step());
  progress_.Excuse(worker, now);
  if (!renews) {
    LogInfo("worker {} {}: number {}, {}, codec {}, {} alive", request.name(), before ? "replaced" : "joined",
            worker.value(), request.device(), request.codec(), membership_.alive());
  }
  return absl::OkStatus();
}

void Coordinator::Replace(WorkerId worker, const Membership::Member& before) {
  NoteResidualLost(before.name, before.progress);
  ForgetSteps(worker);
  Expel(worker);
}

RegisterReply Coordinator::TellOfJob(WorkerId worker, absl::Time now) const {
  RegisterReply reply;
  reply.set_worker(worker.value());
  reply.set_cluster_epoch(cluster_epoch_);
  reply.set_has_values(parameters_.HasValues());
  *reply.mutable_job() = job_;
  *reply.mutable_codec_choice() = codec_tuner_.choice();
  reply.set_shared_memory(frames_.shared_memory());
  reply.set_ucx_address(frames_.ucx_address());
  reply.set_snapshot_dir(options_.snapshot_dir);
  const SnapshotStatus snapshot = ports_.snapshots->status();
  reply.set_snapshot_generation(snapshot.generation());
  reply.set_snapshot_root(snapshot.state_root());
  if (ports_.others != nullptr) {
    for (ServerAddress& server : ports_.others->Addresses()) *reply.add_servers() = std::move(server);
  }
  for (std::string& other : PeersFor(worker, membership_, now)) reply.add_peers(std::move(other));
  reply.set_peers_token(options_.peers_token);
  reply.set_workers(static_cast<uint32_t>(membership_.alive()));
  return reply;
}

uint64_t Coordinator::StartStepOf(WorkerId worker, const RegisterRequest& request,
                                  const RegisterReply& reply) {
  const bool trains = std::any_of(reply.adopted().begin(), reply.adopted().end(),
                                  [](const Lease& lease) { return lease.kind() == LEASE_TRAIN; });
  // What it has not begun to push it can push in any step.
  const bool resumes = request.next_step() < request.first_new_step();
  if (trains) return TakePart(worker, request.next_step(), resumes);
  // Asynchronous workers count steps of their own: a jump to where others are would look like an error.
  return job_.bound() < 0 ? request.next_step() : ports_.params->GetStats().frontier_step;
}

absl::StatusOr<HeartbeatReply> Coordinator::Heartbeat(const HeartbeatRequest& request, const Moment& at) {
  const absl::Time now = at.now;
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, CheckIdentity(request.identity(), now));
  RECON_RETURN_IF_ERROR(CheckHeartbeat(request));
  Membership::Member& member = *membership_.Find(worker);
  member.progress = request.progress();
  // Not its batches: evaluation's are among them.
  member.computes =
      member.computes || request.progress().steps() > 0 || request.progress().batch_seconds() > 0;
  ports_.steps->NoteAcknowledged(worker, request.next_step());
  divergence_.Report(worker, request.progress().batches(), request.progress().last_loss(), at.wall);
  NoteDiverged(worker, request.progress().diverged(), at.wall);
  HeartbeatReply reply;
  const StepWork& work = request.progress().step_work();
  progress_.Report(worker, request.progress().batches(), now);
  // Who has pushed waits for others, for as long as they take. Whose push they wait for has only his word.
  const bool waits_for_others = job_.bound() >= 0 && !ports_.steps->awaited(worker);
  if (request.progress().waiting()) {
    waits_for_others ? progress_.Excuse(worker, now) : progress_.ExcuseByWord(worker, now);
  }
  RECON_RETURN_IF_ERROR(auto_policy_.Report(worker, work, request.progress().last_loss()));
  if (work.automatic()) {
    RECON_RETURN_IF_ERROR(codec_tuner_.Report(worker, work));
  }
  *reply.mutable_codec_choice() = codec_tuner_.choice();
  reply.set_push_batches(PushBatchesOf(worker));
  reply.set_workers(static_cast<uint32_t>(membership_.alive()));
  reply.set_phase(phase());
  reply.set_rival(member.rival_peer);
  RECON_RETURN_IF_ERROR(NoteState(worker, request.state()));
  TellOfState(worker, now, reply.mutable_state());
  reply.set_waits_for(standing_.waits_for);
  for (const uint64_t lease : request.leases()) {
    work_.Renew(LeaseId(lease), worker, now);
    if (!work_.Holds(LeaseId(lease), worker)) reply.add_lost(lease);
  }
  return reply;
}

bool Coordinator::HeardOfAllSince(absl::Time since) const {
  return std::all_of(membership_.members().begin(), membership_.members().end(), [since](const auto& worker) {
    return worker.second.gone || worker.second.last_heard >= since;
  });
}

void Coordinator::Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) {
  ports_.steps->Admit(worker, incarnation, next_step);
  if (ports_.others != nullptr) ports_.others->Admit(worker, incarnation, next_step);
}

void Coordinator::Expel(WorkerId worker) {
  ports_.steps->Expel(worker);
  if (ports_.others != nullptr) ports_.others->Expel(worker);
}

absl::StatusOr<LeaveReply> Coordinator::Leave(const LeaveRequest& request, const Moment& at) {
  const WorkerId worker(request.identity().worker());
  const Membership::Member* member = membership_.Find(worker);
  if (member == nullptr || member->gone || member->incarnation.value() != request.identity().incarnation()) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", worker.value(), " is not a member"));
  }
  if (request.residual_norm() > 0 && request.reason() != "finished") {
    WorkerProgress progress = membership_.Find(worker)->progress;
    progress.set_residual_norm(request.residual_norm());
    NoteResidualLost(membership_.Find(worker)->name, progress);
  }
  if (request.diverged().size() <= limits::kProgressTextBytesMax)
    NoteDiverged(worker, request.diverged(), at.wall);
  Depart(worker, absl::StrCat("left (", request.reason(), ")"));
  return LeaveReply();
}

void Coordinator::NoteDiverged(WorkerId worker, const std::string& why, absl::Time wall) {
  if (why.empty()) return;
  divergence_.Note(absl::StrCat("worker ", membership_.Find(worker)->name, ": ", ShownName(why)), wall);
}

std::string Coordinator::NameOf(WorkerId worker) const {
  const Membership::Member* member = membership_.Find(worker);
  return member == nullptr ? absl::StrCat("number ", worker.value()) : member->name;
}

void Coordinator::NoteUnlikeRates(const UnlikeRates& found) {
  if (std::exchange(said_unlike_rates_, true)) return;
  LogWarn(
      "workers {} and {} named the learning rates {} and {} for step {}, and others for the steps before: a "
      "synchronous step goes by one, that of the batch that comes first. Let their schedules keep to the "
      "job's "
      "progress (join(..., scheduler=))",
      NameOf(found.first), NameOf(found.other), found.first_rate, found.other_rate, found.step);
}

void Coordinator::NoteNonFinite(const NonFiniteUpdate& found) {
  const std::string worker = NameOf(found.worker);
  const char* const when = found.large ? "after the large gradient of worker "
                                       : "noticed up to 63 updates after the cause, at the push of worker ";
  divergence_.NoteUpdate(absl::StrCat("parameters are not finite, ", when, worker, " at step ", found.step,
                                      ": the first is in ", found.tensor),
                         found.wall);
}

std::optional<DivergenceWatch::Finding> Coordinator::TakeDivergence() {
  const SnapshotStatus snapshot = ports_.snapshots->status();
  divergence_.ReportSnapshot(snapshot.generation(), snapshot.non_finite_values(),
                             absl::FromUnixMillis(snapshot.unix_ms()));
  const std::optional<DivergenceWatch::Finding> found = divergence_.Take();
  if (found) {
    LogError("TRAINING DIVERGES: {}", found->why);
    metrics_.NoteDiverged();
  }
  return found;
}

void Coordinator::ForgetSteps(WorkerId worker) {
  states_.Forget(worker);
  codec_tuner_.Forget(worker);
  progress_.Forget(worker);
  shares_.Forget(worker);
  auto_policy_.Forget(worker);
}

void Coordinator::Depart(WorkerId worker, const std::string& how) {
  metrics_.NoteDeparture();
  membership_.Remove(worker);
  membership_.Find(worker)->gone_why = ClippedText(how, limits::kNameBytesMax);
  const size_t leases = work_.TakeBackAllOf(worker);
  ForgetSteps(worker);
  std::map<WorkerId, WorkerPushStats> stats = ports_.params->GetStats().workers;
  if (last_stats_.size() >= limits::kMembersMax) last_stats_.erase(last_stats_.begin());
  last_stats_[worker] = std::move(stats[worker]);
  Expel(worker);
  LogInfo("worker {} {}: {} leases taken back, {} alive", membership_.Find(worker)->name, how, leases,
          membership_.alive());
}

void Coordinator::NoteResidualLost(const std::string& name, const WorkerProgress& progress) {
  if (progress.residual_norm() == 0) return;
  metrics_.NoteResidualLost();
  LogWarn(
      "worker {}: what its encoder had kept back for {:.0f} s is lost unless it comes back, L2 norm {:.3g}",
      name, progress.residual_age_seconds(), progress.residual_norm());
}

}  // namespace recon
