#include "tools/bench/simulated_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace recon {
namespace {

using Planted = SimulationOptions::Planted;

constexpr double kSnapshotSeconds = 0.05;

Coordinator::Options OptionsOf(const SimulationOptions& options, uint64_t cluster_epoch) {
  Coordinator::Options made;
  made.cluster_epoch = cluster_epoch;
  made.job.set_seed(options.seed);
  made.job.set_batch_samples(1);
  made.job.set_data_epochs(options.data_epochs);
  made.job.set_split_samples(1);
  made.job.set_eval_split_samples(1);
  made.job.set_bound(options.bound);
  made.job.set_workers_min(1);
  made.job.set_lease_duration_ms(static_cast<uint32_t>(options.lease_seconds * 1000));
  made.timeouts = {absl::Seconds(options.evict_seconds / 3), absl::Seconds(options.evict_seconds)};
  made.lease_target = absl::Seconds(options.lease_target);
  if (options.planted == Planted::kLeasesNeverEnd) made.job.set_lease_duration_ms(UINT32_MAX);
  return made;
}

}  // namespace

SimulatedDataPlane::SimulatedDataPlane(const SimulationOptions& options, uint64_t cluster_epoch,
                                       SimulatedDisk* disk, SimulatedTime* time)
    : options_(options),
      disk_(disk),
      time_(time),
      cluster_epoch_(cluster_epoch),
      has_values_(disk->generation > 0),
      gate_(options.bound, disk->frontier) {}

absl::Status SimulatedDataPlane::DefineModel(const ModelSpec& model) {
  absl::StatusOr<ParamLayout> layout = ParamLayout::Create(model);
  if (layout.ok()) layout_ = std::make_shared<const ParamLayout>(*std::move(layout));
  return layout.status();
}

void SimulatedDataPlane::AwaitInitialValues(WorkerId worker, std::function<void()> ready) {
  initializer_ = worker;
  ready_ = std::move(ready);
}

void SimulatedDataPlane::BringValues(WorkerId worker) {
  if (worker != initializer_ || std::exchange(has_values_, true)) return;
  ready_();
}

absl::Status SimulatedDataPlane::ChangeRules(const ApplyRules&, uint64_t first_step,
                                             absl::Duration* /*took*/) {
  return absl::FailedPreconditionError(
      absl::StrCat("a simulated job goes on from no other step: ", first_step));
}

ParamStats SimulatedDataPlane::GetStats() const {
  ParamStats stats;
  stats.pushes = pushes_;
  stats.frontier_step = gate_.frontier();
  for (const auto& [worker, session] : sessions_) {
    WorkerPushStats& mine = stats.workers[worker];
    mine.pushes = session.pushes;
    mine.next_step = gate_.next_step(worker);
    mine.active = gate_.active(worker);
  }
  return stats;
}

void SimulatedDataPlane::Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) {
  Session& session = sessions_[worker];
  if (session.process != incarnation.value()) session = Session();
  session.process = incarnation.value();
  session.parked = false;
  session.first_step = 0;
  gate_.Know(worker, next_step);
  GateMoved();
}

void SimulatedDataPlane::Expel(WorkerId worker) {
  const std::vector<Waiting> expelled = ForgetOpenSteps(worker);
  gate_.Forget(worker);
  sessions_.erase(worker);
  GateMoved();
  for (const Waiting& waiting : expelled) waiting.done(Answer::kRegister);
}

uint64_t SimulatedDataPlane::Activate(WorkerId worker, uint64_t next_step, bool) {
  const uint64_t step = gate_.Join(worker, next_step);
  Session& session = sessions_.at(worker);
  if (std::exchange(session.parked, false)) session.first_step = step;
  session.takes_part_from = step;
  GateMoved();
  return step;
}

void SimulatedDataPlane::Deactivate(WorkerId worker) {
  if (options_.planted == Planted::kKeepsWaitingForTheIdle) return;
  gate_.Leave(worker);
  GateMoved();
}

void SimulatedDataPlane::Park(WorkerId worker) {
  const auto session = sessions_.find(worker);
  if (options_.bound != 0 || session == sessions_.end()) return;
  session->second.parked = true;
  const std::vector<Waiting> parked = ForgetOpenSteps(worker);
  gate_.Leave(worker);
  GateMoved();
  for (const Waiting& waiting : parked) waiting.done(Answer::kLate);
}

void SimulatedDataPlane::NoteAcknowledged(WorkerId worker, uint64_t next_step) {
  gate_.Raise(worker, next_step);
  GateMoved();
}

uint64_t SimulatedDataPlane::PushesOf(WorkerId worker) const {
  const auto session = sessions_.find(worker);
  return session == sessions_.end() ? 0 : session->second.pushes;
}

bool SimulatedDataPlane::Knows(Incarnation process) const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [process](const auto& session) { return session.second.process == process.value(); });
}

void SimulatedDataPlane::SkipTo(uint64_t frontier) {
  gate_.SkipTo(frontier);
  GateMoved();
}

std::vector<SimulatedDataPlane::Waiting> SimulatedDataPlane::ForgetOpenSteps(WorkerId worker) {
  std::vector<Waiting> forgotten;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (it->second.worker != worker) {
      ++it;
      continue;
    }
    queue_.Cancel(it->first);
    forgotten.push_back(std::move(it->second));
    it = waiting_.erase(it);
  }
  if (options_.bound != 0) return forgotten;  // Pushes count at once.
  const uint64_t process = sessions_.at(worker).process;
  const auto first = disk_->applied.lower_bound({worker, process, gate_.frontier()});
  disk_->applied.erase(first, disk_->applied.lower_bound({worker, process, UINT64_MAX}));
  return forgotten;
}

void SimulatedDataPlane::GateMoved() {
  for (const ReplyQueue::Ticket ticket : queue_.TakeReleased(gate_)) {
    const Waiting waiting = std::move(waiting_.at(ticket));
    waiting_.erase(ticket);
    CheckBound(waiting.step);
    waiting.done(Answer::kOk);
  }
  disk_->frontier = std::max(disk_->frontier, gate_.frontier());
}

void SimulatedDataPlane::CheckBound(uint64_t step) const {
  if (options_.bound < 0 || step < static_cast<uint64_t>(options_.bound)) return;
  const uint64_t needed = step - static_cast<uint64_t>(options_.bound);
  for (const auto& [worker, session] : sessions_) {
    if (!gate_.active(worker) || session.takes_part_from > needed ||
        disk_->applied.count({worker, session.process, needed}) > 0) {
      continue;
    }
    time_->Violate(absl::StrCat("the reply to step ", step, " went out, and worker ", worker.value(),
                                " has not pushed step ", needed));
  }
}

void SimulatedDataPlane::Push(const WorkerIdentity& sender, uint64_t step, Done done) {
  const WorkerId worker(sender.worker());
  const auto session = sessions_.find(worker);
  if (sender.cluster_epoch() != cluster_epoch_ || session == sessions_.end() ||
      session->second.process != sender.incarnation()) {
    return done(Answer::kRegister);
  }
  Session& mine = session->second;
  const std::tuple<WorkerId, uint64_t, uint64_t> push(worker, mine.process, step);
  const bool first = disk_->applied.count(push) == 0;
  const bool closed = options_.bound == 0 && step < gate_.frontier();
  if (mine.parked || (first && (closed || step < mine.first_step))) return done(Answer::kLate);
  if (first) {
    disk_->applied.insert(push);
    ++mine.pushes;
    ++pushes_;
  }
  gate_.Advance(worker, step);
  if (gate_.Open(step) || options_.planted == Planted::kReleasesEarly) {
    GateMoved();
    CheckBound(step);
    return done(Answer::kOk);
  }
  const ReplyQueue::Ticket ticket = next_ticket_++;
  waiting_[ticket] = {worker, step, std::move(done)};
  queue_.Wait(ticket, step, absl::InfiniteFuture());
  GateMoved();
}

absl::StatusOr<uint64_t> SimulatedJournal::NextClusterEpoch(uint64_t last) {
  disk_->cluster_epoch = std::max(disk_->cluster_epoch, last) + 1;
  return disk_->cluster_epoch;
}

absl::Status SimulatedJournal::SaveJob(const JobRecord& job) {
  disk_->job = job;
  return absl::OkStatus();
}

absl::StatusOr<WorkerId> SimulatedJournal::WorkerIdFor(const std::string& name) {
  const WorkerId next(static_cast<uint32_t>(disk_->workers.size() + 1));
  return disk_->workers.emplace(name, next).first->second;
}

absl::Status SimulatedJournal::SaveCompletion(const Completion& completion) {
  const ControlState::SplitKey split = ControlState::KeyOf(completion);
  if (disk_->completions.count(split) > 0) return absl::AlreadyExistsError("the split is completed already");
  if (!disk_->completed.insert(split).second) {
    time_->Violate(absl::StrCat("split ", completion.split(), " of data epoch ", completion.data_epoch(),
                                " was completed twice"));
  }
  const bool forgets = options_.planted == Planted::kForgetsCompletions && completion.split() % 2 == 0;
  if (!forgets) disk_->completions.emplace(split, completion);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Completion>> SimulatedJournal::LoadCompletions() const {
  std::vector<Completion> all;
  for (const auto& [split, completion] : disk_->completions) all.push_back(completion);
  return all;
}

void SimulatedSnapshots::Take(const std::string&, Done done) {
  const bool fails = time_->Uniform() < options_.lost_calls;
  time_->After(kSnapshotSeconds, [this, fails, done = std::move(done), alive = std::weak_ptr(alive_)] {
    if (alive.expired()) return;
    if (!fails) ++disk_->generation;
    done(fails ? absl::UnavailableError("the store is away") : absl::OkStatus(), time_->now());
  });
}

void SimulatedSnapshots::TakeInBackground(const std::string& reason) {
  Take(reason, [](const absl::Status&, absl::Time) {});
}

SnapshotStatus SimulatedSnapshots::status() const {
  SnapshotStatus status;
  status.set_generation(disk_->generation);
  return status;
}

SimulatedServer::SimulatedServer(const SimulationOptions& options, SimulatedDisk* disk, SimulatedTime* time)
    : options_(options),
      time_(time),
      data_plane_(options, ++disk->cluster_epoch, disk, time),
      journal_(options, disk, time),
      snapshots_(options, disk, time),
      coordinator_(OptionsOf(options, disk->cluster_epoch), ports(), &metrics_),
      grants_(absl::Seconds(options.lease_seconds), absl::Seconds(options.evict_seconds)) {
  const absl::Status recovered = coordinator_.Recover(std::nullopt);
  coordinator_.NoteServing(time_->now());
  if (!recovered.ok()) time_->Violate(absl::StrCat("the server does not start: ", recovered.message()));
}

CoordinatorPorts SimulatedServer::ports() {
  CoordinatorPorts ports;
  ports.params = &data_plane_;
  ports.steps = &data_plane_;
  ports.snapshots = &snapshots_;
  ports.journal = &journal_;
  return ports;
}

absl::StatusOr<RegisterReply> SimulatedServer::Register(const RegisterRequest& request) {
  absl::StatusOr<RegisterReply> reply = coordinator_.Register(request, time_->now());
  if (!reply.ok()) return reply;
  WorkerIdentity worker;
  worker.set_worker(reply->worker());
  worker.set_incarnation(request.incarnation());
  grants_.EndAllOf(reply->worker());
  grants_.Hear(worker, time_->now());
  for (const Lease& lease : reply->adopted()) {
    const std::string wrong = grants_.Grant(worker, lease, time_->now());
    if (!wrong.empty()) time_->Violate(wrong);
  }
  return reply;
}

absl::StatusOr<HeartbeatReply> SimulatedServer::Heartbeat(const HeartbeatRequest& request) {
  absl::StatusOr<HeartbeatReply> reply = coordinator_.Heartbeat(request, {time_->now(), time_->now()});
  if (!reply.ok()) return reply;
  grants_.Hear(request.identity(), time_->now());
  for (const uint64_t lease : request.leases()) grants_.Renew(lease, time_->now());
  for (const uint64_t lease : reply->lost()) grants_.End(lease);
  return reply;
}

absl::StatusOr<AcquireReply> SimulatedServer::Acquire(const AcquireRequest& request) {
  absl::StatusOr<AcquireReply> reply = coordinator_.Acquire(request, time_->now());
  if (!reply.ok()) return reply;
  grants_.Hear(request.identity(), time_->now());
  if (reply->lease().kind() == LEASE_NONE) return reply;
  if (options_.planted == Planted::kGrantsTwice && last_grant_ && reply->lease().split() % 8 == 0) {
    *reply->mutable_lease() = *last_grant_;
  }
  last_grant_ = reply->lease();
  const std::string wrong = grants_.Grant(request.identity(), reply->lease(), time_->now());
  if (!wrong.empty()) time_->Violate(wrong);
  return reply;
}

absl::StatusOr<CompleteReply> SimulatedServer::Complete(const CompleteRequest& request) {
  absl::StatusOr<CompleteReply> reply = coordinator_.Complete(request, {time_->now(), time_->now()});
  if (reply.ok()) grants_.Hear(request.identity(), time_->now());
  if (absl::IsAborted(reply.status()) || (reply.ok() && request.abandon())) {
    grants_.End(request.lease());
  } else if (reply.ok()) {
    grants_.Complete(request.lease(), request.split());
  }
  return reply;
}

absl::StatusOr<RejoinReply> SimulatedServer::Rejoin(const RejoinRequest& request) {
  return coordinator_.Rejoin(request, time_->now());
}

void SimulatedServer::Tick() { coordinator_.Tick(time_->now()); }

}  // namespace recon
