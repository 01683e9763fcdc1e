// Of Coordinator: who is a member, from registration to departure.

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clipped_text.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/snapshot/safetensors.h"
#include "common/snapshot/tensor_match.h"
#include "server/control/coordinator.h"
#include "server/control/proposal.h"
#include "server/scheduler/device_share.h"

namespace recon {
namespace {

// Where fewer pushes lie between two snapshots, these are what the server does most of the time.
constexpr uint64_t kPushesPerSnapshotMin = 16;

}  // namespace

absl::StatusOr<WorkerId> Coordinator::CheckIdentity(const WorkerIdentity& identity, absl::Time now) {
  if (identity.cluster_epoch() != cluster_epoch_) {
    return absl::FailedPreconditionError(
        absl::StrCat("cluster epoch ", identity.cluster_epoch(), ", the server's is ", cluster_epoch_));
  }
  const WorkerId worker(identity.worker());
  RECON_RETURN_IF_ERROR(membership_.Hear(worker, Incarnation(identity.incarnation()), now));
  return worker;
}

absl::Status Coordinator::AdoptModel(const RegisterRequest& request) {
  const auto layout = ports_.params->layout();
  if (layout != nullptr) {
    const std::string difference = ModelDifference(layout->model(), request.model());
    if (!difference.empty()) {
      const bool same_tensors = ModelsHaveSameTensors(layout->model(), request.model());
      return absl::InvalidArgumentError(absl::StrCat(
          "the job trains another model: ", difference,
          same_tensors ? "; the tensors are the same, in another order or in other groups: a new job "
                         "takes them from its snapshots by name (--from-snapshot)"
                       : ""));
    }
    return CheckSyncPeriods(job_, *layout);  // It may be another job's snapshot's.
  }
  RECON_ASSIGN_OR_RETURN(const ParamLayout its_layout, ParamLayout::Create(request.model()));
  RECON_RETURN_IF_ERROR(CheckSyncPeriods(job_, its_layout));
  if (initial_ != nullptr) RECON_RETURN_IF_ERROR(initial_->Check(request.model()));
  RECON_RETURN_IF_ERROR(ports_.params->DefineModel(request.model()));
  LogInfo("model {}: {} parameters in {} shards", request.model().name(), ports_.params->layout()->params(),
          ports_.params->layout()->shard_count());
  WarnOfSmallLog();
  if (ports_.others != nullptr) ports_.others->SetModel(request.model());
  if (initial_ != nullptr) LoadInitialValues();
  return absl::OkStatus();
}

void Coordinator::WarnOfSmallLog() const {
  // A push of all parameters in FP32. A snapshot is due when the log has grown by a quarter of its budget.
  const uint32_t servers = ports_.others == nullptr ? 1 : ports_.others->servers();
  const uint64_t push_bytes = ports_.params->layout()->params() * sizeof(float) / servers;
  const uint64_t budget = ports_.params->log_use().budget_bytes;
  if (budget == 0 || budget / 4 >= kPushesPerSnapshotMin * push_bytes) return;
  LogWarn(
      "--log-max-bytes {}: a push of this model may have {} bytes, so that a snapshot is due after each {} "
      "pushes; give "
      "the log {} bytes or more, where the disk has them",
      budget, push_bytes, std::max<uint64_t>(1, budget / 4 / push_bytes),
      4 * kPushesPerSnapshotMin * push_bytes);
}

absl::Status Coordinator::CheckDataset(const RegisterRequest& request) const {
  if (request.train_samples() != record_->train_samples()) {
    return absl::InvalidArgumentError(absl::StrCat("the worker has ", request.train_samples(),
                                                   " training samples, the job has ",
                                                   record_->train_samples()));
  }
  if (request.test_samples() != record_->test_samples()) {
    return absl::InvalidArgumentError(absl::StrCat("the worker has ", request.test_samples(),
                                                   " test samples, the job has ", record_->test_samples()));
  }
  if (!request.data_fingerprint().empty() && !record_->data_fingerprint().empty() &&
      request.data_fingerprint() != record_->data_fingerprint()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the worker's training data is other data: its fingerprint is ", request.data_fingerprint(),
        ", the job's is ", record_->data_fingerprint(), ": all workers need the same files"));
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckName(const RegisterRequest& request, WorkerId worker, const std::string& peer,
                                    absl::Time now) {
  if (!membership_.HeldByAnother(worker, Incarnation(request.incarnation()), now)) return absl::OkStatus();
  const Membership::Member& holder = *membership_.Find(worker);
  const std::string age = absl::FormatDuration(absl::Trunc(now - holder.last_heard, absl::Milliseconds(1)));
  if (request.name_is_drawn()) {
    return absl::AlreadyExistsError(absl::StrCat("the name ", request.name(), " is that of the worker at ",
                                                 holder.peer, ", heard of ", age, " ago"));
  }
  // One that was killed has lost its connections. One that stands still will be silent.
  if (options_.connected != nullptr && options_.connected->Has(holder.incarnation)) {
    return absl::AbortedError(absl::StrCat("the name ", request.name(), " is that of the worker at ",
                                           holder.peer, ", which is connected and was heard of ", age,
                                           " ago: this one waits until that has ended or is silent; if both "
                                           "are meant to run, give them two names"));
  }
  LogWarn(
      "worker {}: the process at {} replaces the one at {}, which was heard of {} ago and has no connection: "
      "if both "
      "were meant to run, give them two names",
      request.name(), peer, holder.peer, age);
  return absl::OkStatus();
}

absl::StatusOr<RegisterReply> Coordinator::Register(const RegisterRequest& request, absl::Time now,
                                                    const std::string& peer) {
  if (request.name().empty() || request.name().size() > limits::kNameBytesMax || request.incarnation() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("worker name '", request.name(), "' of ", request.name().size(), " bytes (1 to ",
                     limits::kNameBytesMax, " allowed), incarnation ", request.incarnation(), " (0 is not)"));
  }
  if (request.held_size() > static_cast<int>(limits::kLeasesPerWorkerMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.held_size(), " leases, allowed are ", limits::kLeasesPerWorkerMax));
  }
  if (request.proposed_size() > static_cast<int>(limits::kProposedFlagsMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.proposed_size(), " settings, allowed are ", limits::kProposedFlagsMax));
  }
  for (const FlagValue& flag : request.proposed()) {
    if (flag.name().empty() || flag.name().size() > limits::kNameBytesMax ||
        flag.value().size() > limits::kNameBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("a setting whose name has ", flag.name().size(),
                                                     " and whose value has ", flag.value().size(),
                                                     " bytes, allowed are ", limits::kNameBytesMax));
    }
  }
  for (const std::string* text : {&request.device(), &request.codec(), &request.data_fingerprint()}) {
    if (text->size() <= limits::kNameBytesMax) continue;
    return absl::InvalidArgumentError(absl::StrCat("device, codec or data fingerprint of ", text->size(),
                                                   " bytes, allowed are ", limits::kNameBytesMax));
  }
  if (!request.serves_parameters().empty()) {
    RECON_RETURN_IF_ERROR(CheckAddress("--serve-parameters", request.serves_parameters()));
  }
  // What it begins next: what it was told before the server died, though older steps are under way.
  const uint64_t first_new_step = std::max(request.next_step(), request.first_new_step());
  if (first_new_step > limits::kStepMax || request.train_samples() > limits::kSamplesMax ||
      request.test_samples() > limits::kSamplesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "next step ", first_new_step, ", training samples ", request.train_samples(), ", test samples ",
        request.test_samples(), ": allowed are ", limits::kStepMax, " and ", limits::kSamplesMax));
  }
  RECON_RETURN_IF_ERROR(ParamLayout::Create(request.model()).status());
  if (!record_ && request.proposed_size() > 0 && options_.proposed.empty() && options_.adopt_proposal) {
    return options_.adopt_proposal(request);
  }
  if (!record_) {
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
    RECON_RETURN_IF_ERROR(AdoptModel(request));
    RECON_RETURN_IF_ERROR(ports_.journal->SaveJob(record));
    record_ = record;
  }
  RECON_RETURN_IF_ERROR(AdoptModel(request));
  RECON_RETURN_IF_ERROR(CheckDataset(request));
  if (record_->data_fingerprint().empty() && !request.data_fingerprint().empty()) {
    JobRecord record = *record_;
    record.set_data_fingerprint(request.data_fingerprint());
    RECON_RETURN_IF_ERROR(ports_.journal->SaveJob(record));
    record_ = record;
  }
  RECON_RETURN_IF_ERROR(CheckProposal(request, options_.settings));
  // Its numbers are of a time when nobody waited for others. It cannot go back, and would wait until all have
  // come so far: they go on from there instead. (Of several servers each would have to.)
  const uint64_t reach =
      ports_.steps->frontier() + limits::kStepsAheadMax + static_cast<uint64_t>(std::max(0, job_.bound()));
  if (job_.bound() >= 0 && ports_.others == nullptr && first_new_step > reach) {
    if (first_new_step >= limits::kStepMax / 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("next step ", first_new_step, ", the job's is ", ports_.steps->frontier()));
    }
    LogInfo("worker {} is at step {}, the job at {}: all go on from there", request.name(), first_new_step,
            ports_.steps->frontier());
    RECON_RETURN_IF_ERROR(GoOnBy(ports_.params->rules(), first_new_step, now));
  }
  if (ports_.others != nullptr && !ports_.others->state().live)
    return absl::UnavailableError(ports_.others->Missing());
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, ports_.journal->WorkerIdFor(request.name()));
  RECON_RETURN_IF_ERROR(CheckName(request, worker, peer, now));

  Membership::Member member;
  member.name = request.name();
  member.incarnation = Incarnation(request.incarnation());
  member.device = request.device();
  member.codec = request.codec();
  member.simulated = request.simulated();
  member.serves_parameters = request.serves_parameters();
  member.peer = peer;
  const Membership::Member* before = membership_.Find(worker);
  const WorkerProgress progress_before = before == nullptr ? WorkerProgress() : before->progress;
  const bool replaces = before != nullptr && !before->gone && before->incarnation != member.incarnation;
  const bool renews = before != nullptr && !before->gone && before->incarnation == member.incarnation;
  // Of a server that has been restarted: whoever has steps behind it.
  member.computes = renews ? before->computes : first_new_step > 0;
  RECON_RETURN_IF_ERROR(membership_.Admit(worker, member, now));
  if (started_ && membership_.alive() >= static_cast<int>(job_.workers_min())) {
    RECON_RETURN_IF_ERROR(FixStepSamples());
  }
  if (replaces) {
    NoteResidualLost(request.name(), progress_before);
    ReturnTasks(leases_.TakeAllOf(worker));
    codec_tuner_.Forget(worker);
    progress_.Forget(worker);
    shares_.Forget(worker);
    if (policy_tuner_) policy_tuner_->Forget(worker);
    Expel(worker);
  }
  Admit(worker, member.incarnation, request.next_step());

  next_steps_[worker] = request.next_step();
  progress_.Excuse(worker, now);
  if (!renews) {
    LogInfo("worker {} {}: number {}, {}, codec {}, {} alive", request.name(),
            replaces ? "replaced" : "joined", worker.value(), request.device(), request.codec(),
            membership_.alive());
  }

  RegisterReply reply;
  reply.set_worker(worker.value());
  reply.set_cluster_epoch(cluster_epoch_);
  reply.set_has_values(HasValues());
  *reply.mutable_job() = job_;
  *reply.mutable_codec_choice() = codec_tuner_.choice();
  reply.set_shared_memory(shared_memory_);
  reply.set_ucx_address(ucx_address_);
  reply.set_snapshot_dir(options_.snapshot_dir);
  const SnapshotStatus snapshot = ports_.snapshots->status();
  reply.set_snapshot_generation(snapshot.generation());
  reply.set_snapshot_root(snapshot.state_root());
  if (ports_.others != nullptr) {
    for (ServerAddress& server : ports_.others->Addresses()) *reply.add_servers() = std::move(server);
  }
  for (std::string& other : PeersFor(worker, now)) reply.add_peers(std::move(other));
  reply.set_workers(static_cast<uint32_t>(membership_.alive()));
  AdoptLeases(request, worker, now, &reply);
  // Asynchronous workers count steps of their own: a jump to where others are would look like an error.
  reply.set_start_step(job_.bound() < 0 ? request.next_step() : ports_.params->GetStats().frontier_step);
  const bool trains = std::any_of(reply.adopted().begin(), reply.adopted().end(),
                                  [](const Lease& lease) { return lease.kind() == LEASE_TRAIN; });
  if (trains) reply.set_start_step(TakePart(worker, request.next_step(), /*resumes=*/true));
  StartIfReady();
  return reply;
}

std::vector<std::string> Coordinator::PeersFor(WorkerId worker, absl::Time now) const {
  std::vector<std::string> peers;
  for (const auto& [id, member] : membership_.members()) {
    // Who has computed a step has parameters.
    if (id == worker || member.gone || membership_.suspect(member, now) || member.serves_parameters.empty() ||
        member.progress.steps() == 0) {
      continue;
    }
    peers.push_back(member.serves_parameters);
  }
  // Those who join one after the other ask different ones.
  if (!peers.empty()) {
    const auto first = static_cast<std::ptrdiff_t>(worker.value() % peers.size());
    std::rotate(peers.begin(), peers.begin() + first, peers.end());
  }
  if (peers.size() > limits::kPeersMax) peers.resize(limits::kPeersMax);
  return peers;
}

absl::StatusOr<HeartbeatReply> Coordinator::Heartbeat(const HeartbeatRequest& request, const Moment& at) {
  const absl::Time now = at.now;
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, CheckIdentity(request.identity(), now));
  if (request.next_step() > limits::kStepMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("next step ", request.next_step(), ", allowed are ", limits::kStepMax));
  }
  if (request.progress().codec().size() > limits::kProgressTextBytesMax ||
      request.progress().diverged().size() > limits::kProgressTextBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "codec of ", request.progress().codec().size(), " and divergence of ",
        request.progress().diverged().size(), " bytes, allowed are ", limits::kProgressTextBytesMax));
  }
  if (request.leases_size() > static_cast<int>(limits::kLeasesPerWorkerMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat(request.leases_size(), " leases, allowed are ", limits::kLeasesPerWorkerMax));
  }
  RECON_RETURN_IF_ERROR(CheckDeviceStatus(request.progress().device_status()));
  if (request.progress().precision().size() > limits::kNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("precision of ", request.progress().precision().size(),
                                                   " bytes, allowed are ", limits::kNameBytesMax));
  }
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
  if (request.progress().waiting()) progress_.Excuse(worker, now);
  if (policy_tuner_) {
    RECON_RETURN_IF_ERROR(policy_tuner_->Report(worker, work, request.progress().last_loss()));
  }
  if (work.automatic()) {
    RECON_RETURN_IF_ERROR(codec_tuner_.Report(worker, work));
  }
  *reply.mutable_codec_choice() = codec_tuner_.choice();
  reply.set_push_batches(PushBatchesOf(worker));
  reply.set_workers(static_cast<uint32_t>(membership_.alive()));
  reply.set_phase(phase());
  for (const uint64_t lease : request.leases()) {
    leases_.Renew(LeaseId(lease), worker, now);
    if (!leases_.Holds(LeaseId(lease), worker)) reply.add_lost(lease);
  }
  return reply;
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

std::optional<DivergenceWatch::Finding> Coordinator::TakeDivergence() {
  const SnapshotStatus snapshot = ports_.snapshots->status();
  if (snapshot.non_finite_values() > 0 && snapshot.generation() != non_finite_generation_) {
    non_finite_generation_ = snapshot.generation();
    divergence_.Note(absl::StrCat("snapshot ", snapshot.generation(), " has ", snapshot.non_finite_values(),
                                  " values that are not finite"),
                     absl::FromUnixMillis(snapshot.unix_ms()));
  }
  const std::optional<DivergenceWatch::Finding> found = divergence_.Take();
  if (found) {
    divergence_said_ = found->why;
    LogError("TRAINING DIVERGES: {}", found->why);
    diverged_.Set(1);
  }
  return found;
}

void Coordinator::Depart(WorkerId worker, const std::string& how) {
  departures_.Increment();
  membership_.Remove(worker);
  membership_.Find(worker)->gone_why = ClippedText(how, limits::kNameBytesMax);
  const std::vector<Task> tasks = leases_.TakeAllOf(worker);
  ReturnTasks(tasks);
  codec_tuner_.Forget(worker);
  progress_.Forget(worker);
  shares_.Forget(worker);
  if (policy_tuner_) policy_tuner_->Forget(worker);
  std::map<WorkerId, WorkerPushStats> stats = ports_.params->GetStats().workers;
  if (last_stats_.size() >= limits::kMembersMax) last_stats_.erase(last_stats_.begin());
  last_stats_[worker] = std::move(stats[worker]);
  Expel(worker);
  LogInfo("worker {} {}: {} leases taken back, {} alive", membership_.Find(worker)->name, how, tasks.size(),
          membership_.alive());
}

void Coordinator::NoteResidualLost(const std::string& name, const WorkerProgress& progress) {
  if (progress.residual_norm() == 0) return;
  residuals_lost_.Increment();
  LogWarn(
      "worker {}: what its encoder had kept back for {:.0f} s is lost unless it comes back, L2 norm {:.3g}",
      name, progress.residual_age_seconds(), progress.residual_norm());
}

}  // namespace recon
