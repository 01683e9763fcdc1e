#include "tools/bench/simulation.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tools/bench/simulated_server.h"
#include "tools/bench/simulated_time.h"

namespace recon {
namespace {

constexpr double kTick = 0.1;
constexpr double kRetry = 0.5;  // After a call that got no answer, or when there is no work.

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options) : options_(options), time_(options.seed) {}
  SimulationResult Run();

 private:
  struct Held {
    Lease lease;                  // What is left of it.
    uint32_t steps_done = 0;      // Of its first split.
    std::vector<uint64_t> steps;  // Whose pushes were acknowledged.
    bool lost = false;
  };
  struct Worker {
    uint64_t life = 0;  // Its incarnation; 0: dead.
    double stopped_until = 0;
    double slower = 1;
    WorkerIdentity identity;
    bool registering = false;
    bool computing = false;
    uint64_t steps = 0;  // Computed.
    uint64_t next_step = 0;
    bool pushing = false;  // A push of next_step is not acknowledged.
    std::optional<Held> held;
  };

  bool Lost() { return time_.Uniform() < options_.lost_calls; }
  // Of a worker's process: not after its death, and not while it is stopped.
  void AfterAt(size_t worker, double seconds, std::function<void()> what);
  // `serve` at the server, if the call gets there; it answers by what it is given, once or never. `silence`
  // if no answer is there after a while.
  using Reply = std::function<void(std::function<void()> then)>;
  void Call(size_t worker, const std::function<void(Reply reply)>& serve,
            const std::function<void()>& silence);

  void StartServer() { server_ = std::make_unique<SimulatedServer>(options_, &disk_, &time_); }
  void StartWorker(size_t worker);
  void Register(size_t worker);
  void Registered(size_t worker, const RegisterReply& reply);
  void Heartbeat(size_t worker);
  void Acquire(size_t worker);
  void Acquired(size_t worker, const AcquireReply& reply);
  void BringValues(size_t worker);
  void Compute(size_t worker);
  void Push(size_t worker);
  void Pushed(size_t worker, SimulatedDataPlane::Answer answer);
  void Rejoin(size_t worker);
  void GiveUpPush(size_t worker);
  void Complete(size_t worker, bool abandon);
  void Completed(size_t worker, const absl::Status& status, bool abandon);
  void CheckCompletion(const WorkerIdentity& worker, const Held& held);
  void Tick();
  void Failures();
  void KillOne();
  void Repeat(size_t which);

  const SimulationOptions options_;
  SimulatedTime time_;
  SimulatedDisk disk_;
  std::unique_ptr<SimulatedServer> server_;  // Null while it is down.
  std::vector<Worker> workers_;
  struct Repeated {
    double rate;
    std::function<void()> what;
  };
  std::vector<Repeated> repeated_;
  uint64_t lives_ = 0;
  double useful_seconds_ = 0;
  uint64_t steps_computed_ = 0;
  SimulationResult result_;
};

void Simulation::AfterAt(size_t worker, double seconds, std::function<void()> what) {
  time_.After(seconds, [this, worker, life = workers_[worker].life, what = std::move(what)]() mutable {
    const Worker& mine = workers_[worker];
    if (mine.life != life) return;
    if (time_.seconds() < mine.stopped_until) {
      return AfterAt(worker, mine.stopped_until - time_.seconds(), std::move(what));
    }
    what();
  });
}

void Simulation::Call(size_t worker, const std::function<void(Reply)>& serve,
                      const std::function<void()>& silence) {
  const auto answered = std::make_shared<bool>(false);
  AfterAt(worker, kRetry + options_.lease_seconds, [answered, silence] {
    if (!std::exchange(*answered, true)) silence();
  });
  if (Lost()) return;
  const Reply reply = [this, worker, life = workers_[worker].life, answered](std::function<void()> then) {
    if (workers_[worker].life != life || Lost()) return;
    AfterAt(worker, time_.Exponential(options_.call_seconds), [answered, then = std::move(then)] {
      if (!std::exchange(*answered, true)) then();
    });
  };
  time_.After(time_.Exponential(options_.call_seconds),
              [this, serve, reply, worker, life = workers_[worker].life, answered, silence] {
                if (server_ != nullptr) return serve(reply);
                // The connection is refused: no need to wait.
                if (workers_[worker].life != life) return;
                AfterAt(worker, kRetry, [answered, silence] {
                  if (!std::exchange(*answered, true)) silence();
                });
              });
}

void Simulation::StartWorker(size_t worker) {
  Worker& mine = workers_[worker];
  const double slower = mine.slower;
  mine = Worker();
  mine.life = ++lives_;
  mine.slower = slower;
  mine.identity.set_incarnation(mine.life);
  Register(worker);
  AfterAt(worker, options_.heartbeat_seconds * time_.Uniform(), [this, worker] { Heartbeat(worker); });
}

void Simulation::Register(size_t worker) {
  Worker& mine = workers_[worker];
  mine.registering = true;
  RegisterRequest request;
  request.set_name(absl::StrCat("w", worker));
  request.set_incarnation(mine.life);
  request.mutable_model()->set_name("model");
  TensorSpec* tensor = request.mutable_model()->add_tensors();
  tensor->set_name("weights");
  tensor->add_shape(1);
  request.set_train_samples(options_.splits);
  request.set_next_step(mine.next_step);
  if (mine.held && !mine.held->lost) *request.add_held() = mine.held->lease;
  Call(
      worker,
      [this, worker, request](const Reply& reply) {
        const absl::StatusOr<RegisterReply> registered = server_->Register(request);
        if (registered.ok()) return reply([=] { Registered(worker, *registered); });
        // Another process has its name: this one is dead.
        if (absl::IsAlreadyExists(registered.status())) return;
        time_.Violate(absl::StrCat("worker ", worker, " is refused: ", registered.status().message()));
      },
      [this, worker] { Register(worker); });
}

void Simulation::Registered(size_t worker, const RegisterReply& reply) {
  Worker& mine = workers_[worker];
  mine.registering = false;
  mine.identity.set_worker(reply.worker());
  mine.identity.set_cluster_epoch(reply.cluster_epoch());
  if (mine.held && reply.adopted_size() == 0) mine.held->lost = true;
  if (mine.held && reply.adopted_size() > 0) {
    const Lease& rest = reply.adopted(0);
    if (rest.split() != mine.held->lease.split()) {
      // Its first splits are done, which it has not heard of; a push of one of them is not of the next.
      mine.held->lost = mine.held->lost || mine.pushing;
      mine.held->steps_done = 0;
      mine.held->steps.clear();
    }
    mine.held->lease = rest;
  }
  if (mine.pushing) return Push(worker);
  mine.next_step = std::max(mine.next_step, reply.start_step());
  mine.held ? Compute(worker) : Acquire(worker);
}

void Simulation::Heartbeat(size_t worker) {
  AfterAt(worker, options_.heartbeat_seconds, [this, worker] { Heartbeat(worker); });
  const Worker& mine = workers_[worker];
  if (mine.registering) return;
  HeartbeatRequest request;
  *request.mutable_identity() = mine.identity;
  const uint64_t lease = mine.held ? mine.held->lease.lease() : 0;
  if (lease != 0) request.add_leases(lease);
  const double step_seconds = options_.step_seconds * mine.slower;
  WorkerProgress* progress = request.mutable_progress();
  progress->set_steps(mine.steps);
  progress->set_batches(mine.steps);
  progress->set_batch_seconds(mine.steps > 0 ? step_seconds : 0);
  progress->set_samples_per_second(1 / (options_.steps_per_split * step_seconds));
  progress->set_waiting(!mine.computing);
  request.set_next_step(mine.next_step);
  Call(
      worker,
      [this, worker, lease, request](const Reply& reply) {
        const absl::StatusOr<HeartbeatReply> heard = server_->Heartbeat(request);
        // If it has to register, its next call of another kind says so.
        if (!heard.ok() || heard->lost_size() == 0) return;
        reply([=] {
          Worker& now = workers_[worker];
          if (now.held && now.held->lease.lease() == lease) now.held->lost = true;
        });
      },
      [] {});
}

void Simulation::Acquire(size_t worker) {
  AcquireRequest request;
  *request.mutable_identity() = workers_[worker].identity;
  request.set_next_step(workers_[worker].next_step);
  Call(
      worker,
      [this, worker, request](const Reply& reply) {
        const absl::StatusOr<AcquireReply> acquired = server_->Acquire(request);
        if (acquired.ok()) return reply([=] { Acquired(worker, *acquired); });
        reply([=] { Register(worker); });
      },
      [this, worker] { Acquire(worker); });
}

void Simulation::Acquired(size_t worker, const AcquireReply& reply) {
  if (reply.needs_initial_values()) return BringValues(worker);
  if (reply.lease().kind() == LEASE_NONE) return AfterAt(worker, kRetry, [=] { Acquire(worker); });
  Worker& mine = workers_[worker];
  mine.held = Held();
  mine.held->lease = reply.lease();
  mine.next_step = std::max(mine.next_step, reply.start_step());
  Compute(worker);
}

void Simulation::BringValues(size_t worker) {
  Call(
      worker,
      [this, worker, id = WorkerId(workers_[worker].identity.worker())](const Reply& reply) {
        server_->data_plane()->BringValues(id);
        reply([=] { Acquire(worker); });
      },
      [this, worker] { Acquire(worker); });
}

void Simulation::Compute(size_t worker) {
  Worker& mine = workers_[worker];
  if (mine.held->lost) return Complete(worker, /*abandon=*/true);
  if (mine.held->steps_done == options_.steps_per_split) return Complete(worker, /*abandon=*/false);
  mine.computing = true;
  AfterAt(worker, options_.step_seconds * mine.slower, [this, worker] {
    ++steps_computed_;
    ++workers_[worker].steps;
    workers_[worker].computing = false;
    workers_[worker].pushing = true;
    Push(worker);
  });
}

void Simulation::Push(size_t worker) {
  Call(
      worker,
      [this, worker, sender = workers_[worker].identity,
       step = workers_[worker].next_step](const Reply& reply) {
        server_->data_plane()->Push(
            sender, step, [=](SimulatedDataPlane::Answer answer) { reply([=] { Pushed(worker, answer); }); });
      },
      [this, worker] { Push(worker); });
}

void Simulation::Pushed(size_t worker, SimulatedDataPlane::Answer answer) {
  if (answer == SimulatedDataPlane::Answer::kRegister) return Register(worker);
  if (answer == SimulatedDataPlane::Answer::kLate) return Rejoin(worker);
  Worker& mine = workers_[worker];
  mine.pushing = false;
  ++mine.held->steps_done;
  mine.held->steps.push_back(mine.next_step);
  ++mine.next_step;
  Compute(worker);
}

// Its step was closed without its push, which goes with a later one, if it counts still.
void Simulation::Rejoin(size_t worker) {
  ++result_.late_steps;
  if (workers_[worker].held->lost) return GiveUpPush(worker);
  RejoinRequest request;
  *request.mutable_identity() = workers_[worker].identity;
  request.set_next_step(workers_[worker].next_step + 1);
  Call(
      worker,
      [this, worker, request](const Reply& reply) {
        const absl::StatusOr<RejoinReply> rejoined = server_->Rejoin(request);
        if (absl::IsAborted(rejoined.status())) return reply([=] { GiveUpPush(worker); });
        if (!rejoined.ok()) return reply([=] { Register(worker); });
        reply([=] {
          workers_[worker].next_step = rejoined->step();
          Push(worker);
        });
      },
      [this, worker] { Rejoin(worker); });
}

void Simulation::GiveUpPush(size_t worker) {
  Worker& mine = workers_[worker];
  mine.pushing = false;
  ++mine.next_step;
  mine.held->lost = true;
  Compute(worker);
}

void Simulation::Complete(size_t worker, bool abandon) {
  const Held held = *workers_[worker].held;
  CompleteRequest request;
  *request.mutable_identity() = workers_[worker].identity;
  request.set_lease(held.lease.lease());
  request.set_split(held.lease.split());
  request.set_abandon(abandon);
  Call(
      worker,
      [this, worker, held, request, abandon](const Reply& reply) {
        const size_t before = disk_.completed.size();
        const absl::Status status = server_->Complete(request).status();
        if (disk_.completed.size() > before) {
          CheckCompletion(request.identity(), held);
          useful_seconds_ += options_.steps_per_split * options_.step_seconds * workers_[worker].slower;
        }
        reply([=] { Completed(worker, status, abandon); });
      },
      [this, worker, abandon] { Complete(worker, abandon); });
}

void Simulation::CheckCompletion(const WorkerIdentity& worker, const Held& held) {
  for (const uint64_t step : held.steps) {
    if (disk_.applied.count({WorkerId(worker.worker()), worker.incarnation(), step}) > 0) continue;
    time_.Violate(absl::StrCat("split ", held.lease.split(), " is completed without its step ", step));
  }
  if (held.steps.size() != options_.steps_per_split) time_.Violate("a split is completed with too few steps");
}

void Simulation::Completed(size_t worker, const absl::Status& status, bool abandon) {
  Worker& mine = workers_[worker];
  if (absl::IsFailedPrecondition(status)) {
    if (abandon) mine.held.reset();
    return Register(worker);
  }
  Lease& lease = mine.held->lease;
  if (!status.ok() || abandon || lease.splits() == 1) {
    mine.held.reset();
    return Acquire(worker);
  }
  lease.set_splits(lease.splits() - 1);
  lease.set_split(lease.split() + 1);
  lease.set_begin(lease.begin() + 1);
  mine.held->steps_done = 0;
  mine.held->steps.clear();
  Compute(worker);
}

void Simulation::Tick() {
  time_.After(kTick, [this] { Tick(); });
  if (server_ != nullptr) server_->Tick();
}

void Simulation::Repeat(size_t which) {
  repeated_[which].what();
  time_.After(time_.Exponential(1 / repeated_[which].rate), [this, which] { Repeat(which); });
}

// One of those who live; its replacement comes a while later.
void Simulation::KillOne() {
  size_t worker = time_.Random() % workers_.size();
  for (size_t tries = 0; workers_[worker].life == 0; ++tries) {
    if (tries == workers_.size()) return;
    worker = (worker + 1) % workers_.size();
  }
  workers_[worker].life = 0;
  ++result_.kills;
  time_.After(time_.Exponential(options_.replacement_seconds), [this, worker] { StartWorker(worker); });
}

void Simulation::Failures() {
  const auto repeat = [this](double rate, std::function<void()> what) {
    if (rate <= 0) return;
    repeated_.push_back({rate, std::move(what)});
    time_.After(time_.Exponential(1 / rate), [this, which = repeated_.size() - 1] { Repeat(which); });
  };
  repeat(options_.kills_per_second, [this] { KillOne(); });
  repeat(options_.stops_per_second, [this] {
    Worker& worker = workers_[time_.Random() % workers_.size()];
    if (worker.life == 0 || time_.seconds() < worker.stopped_until) return;
    worker.stopped_until = time_.seconds() + time_.Exponential(options_.stop_seconds);
    ++result_.stops;
  });
  repeat(options_.server_kills_per_second, [this] {
    if (server_ == nullptr) return;
    result_.pushes += server_->data_plane()->pushes();
    server_ = nullptr;
    ++result_.server_kills;
    time_.After(options_.server_seconds, [this] { StartServer(); });
  });
}

SimulationResult Simulation::Run() {
  StartServer();
  workers_.resize(static_cast<size_t>(options_.workers));
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    workers_[worker].slower = 1 + options_.speed_spread * time_.Uniform();
    StartWorker(worker);
  }
  Tick();
  Failures();
  const size_t all = size_t{options_.data_epochs} * options_.splits;
  while (time_.violation().empty() && (server_ == nullptr || !server_->finished())) {
    if (time_.seconds() > options_.give_up_seconds) {
      time_.Violate(
          absl::StrCat("the job hangs: ", disk_.completed.size(), " of ", all, " splits are completed"));
      break;
    }
    time_.Step();
  }
  if (time_.violation().empty() && disk_.completed.size() != all) {
    time_.Violate(
        absl::StrCat("the job is finished with ", disk_.completed.size(), " of ", all, " splits completed"));
  }
  if (server_ != nullptr) result_.pushes += server_->data_plane()->pushes();
  result_.violation = time_.violation();
  result_.seconds = time_.seconds();
  result_.goodput = useful_seconds_ / (time_.seconds() * options_.workers);
  const uint64_t needed = uint64_t{options_.steps_per_split} * disk_.completed.size();
  result_.redone_steps = steps_computed_ > needed ? steps_computed_ - needed : 0;
  return result_;
}

}  // namespace

SimulationResult Simulate(const SimulationOptions& options) { return Simulation(options).Run(); }

double SimulateRestarts(const SimulationOptions& options, double checkpoint_seconds, double save_seconds,
                        double seconds) {
  std::mt19937_64 random(options.seed);
  std::exponential_distribution<double> until_kill(std::max(options.kills_per_second, 1e-12));
  double now = 0;
  double useful = 0;
  double next_kill = until_kill(random);
  while (now < seconds) {
    if (now + checkpoint_seconds + save_seconds <= next_kill) {
      now += checkpoint_seconds + save_seconds;
      useful += checkpoint_seconds;
      continue;
    }
    // What came after the last checkpoint is lost; whoever dies while all wait makes them wait anew.
    do {
      now = next_kill + options.evict_seconds + options.replacement_seconds;
      next_kill += until_kill(random);
    } while (next_kill < now);
  }
  return useful / now;
}

}  // namespace recon
