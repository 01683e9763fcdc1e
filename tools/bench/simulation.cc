#include "tools/bench/simulation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/membership/membership.h"
#include "server/scheduler/lease_size.h"
#include "server/scheduler/lease_table.h"
#include "server/scheduler/split_queue.h"
#include "server/sync/staleness_gate.h"

namespace recon {
namespace {

using Planted = SimulationOptions::Planted;
using SplitKey = std::pair<uint32_t, uint32_t>;  // Data epoch, split.

constexpr double kTick = 0.1;
constexpr double kRetry = 0.5;  // After a call that got no answer, or when there is no work.

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

SplitKey KeyOf(const Task& task) { return {task.data_epoch, task.split.value()}; }

std::vector<SplitKey> KeysOf(const Task& task) {
  std::vector<SplitKey> keys;
  for (uint32_t i = 0; i < task.splits; ++i) keys.emplace_back(task.data_epoch, task.split.value() + i);
  return keys;
}

class Simulation {
 public:
  explicit Simulation(const SimulationOptions& options) : options_(options), random_(options.seed) {}
  SimulationResult Run();

 private:
  // What lives and dies with a server process.
  struct Server {
    Server(const SimulationOptions& options, uint64_t epoch, uint64_t frontier, SplitQueue splits)
        : cluster_epoch(epoch),
          membership({absl::Seconds(options.evict_seconds / 3), absl::Seconds(options.evict_seconds)}),
          leases(absl::Seconds(options.lease_seconds), epoch << 40),
          queue(std::move(splits)),
          gate(options.bound, frontier) {}
    uint64_t cluster_epoch;
    Membership membership;
    LeaseTable leases;
    SplitQueue queue;
    StalenessGate gate;
    std::map<SplitKey, LeaseId> holders;  // Beside the table, to check it.
    // Beside the gate, to check it: each worker's life, and the step it took part from.
    std::map<size_t, std::pair<uint64_t, uint64_t>> joined;
    std::map<StalenessGate::Ticket, std::pair<std::function<void()>, uint64_t>> waiting;
    StalenessGate::Ticket next_ticket = 0;
  };
  struct Held {
    Task task;  // What is left of it.
    uint64_t lease = 0;
    uint32_t steps_done = 0;      // Of its first split.
    std::vector<uint64_t> steps;  // Whose pushes were acknowledged.
    bool lost = false;
  };
  struct Worker {
    uint64_t life = 0;  // Its incarnation; 0: dead.
    double stopped_until = 0;
    double slower = 1;
    uint64_t cluster_epoch = 0;
    bool registering = false;
    uint64_t next_step = 0;
    bool pushing = false;  // A push of next_step is not acknowledged.
    std::optional<Held> held;
  };
  enum class Answer { kOk, kRegister, kDrop };

  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  double Exponential(double mean) { return -mean * std::log(1 - Uniform()); }
  bool Lost() { return Uniform() < options_.lost_calls; }
  WorkerId IdOf(size_t worker) const { return WorkerId(static_cast<uint32_t>(worker + 1)); }
  void Violate(const std::string& what) {
    if (result_.violation.empty()) result_.violation = absl::StrCat("at ", now_, " s: ", what);
  }

  void After(double seconds, std::function<void()> what) {
    events_.emplace(now_ + seconds, number_++, std::move(what));
  }
  // Of a worker's process: not after its death, and not while it is stopped.
  void AfterAt(size_t worker, double seconds, std::function<void()> what) {
    After(seconds, [this, worker, life = workers_[worker].life, what = std::move(what)]() mutable {
      const Worker& mine = workers_[worker];
      if (mine.life != life) return;
      if (now_ < mine.stopped_until) return AfterAt(worker, mine.stopped_until - now_, std::move(what));
      what();
    });
  }
  // `serve` at the server, if the call gets there; it answers by what it is given, once or never. `silence`
  // if no answer is there after a while.
  using Reply = std::function<void(std::function<void()> then)>;
  void Call(size_t worker, const std::function<void(Reply reply)>& serve,
            const std::function<void()>& silence);

  void StartServer();
  void StartWorker(size_t worker);
  void Register(size_t worker);
  void Heartbeat(size_t worker);
  void Acquire(size_t worker);
  void Compute(size_t worker);
  void Push(size_t worker);
  void Complete(size_t worker, bool abandon);
  void Tick();
  void Failures();
  void Repeat(size_t which);

  // The server's side, as the coordinator and the ParamServer have it.
  bool Knows(size_t worker, uint64_t cluster_epoch, uint64_t life);
  uint64_t GrantTo(const Task& task, size_t worker);
  void TakeBack(const Task& task);
  void Evict(size_t worker);
  uint64_t Join(size_t worker, uint64_t life, uint64_t next_step);
  void AnswerReleased();
  void CheckBound(uint64_t step);

  const SimulationOptions options_;
  std::mt19937_64 random_;
  double now_ = 0;
  uint64_t number_ = 0;
  using Event = std::tuple<double, uint64_t, std::function<void()>>;
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return std::make_pair(std::get<0>(a), std::get<1>(a)) > std::make_pair(std::get<0>(b), std::get<1>(b));
    }
  };
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::vector<Worker> workers_;
  struct Repeated {
    double rate;
    std::function<void()> what;
  };
  std::vector<Repeated> repeated_;
  uint64_t lives_ = 0;
  std::unique_ptr<Server> server_;

  // What outlives a server: its database and its log.
  uint64_t cluster_epoch_ = 0;
  uint64_t frontier_ = 0;
  std::map<SplitKey, Task> completions_;
  std::set<std::tuple<size_t, uint64_t, uint64_t>> applied_;  // Worker, life, step.

  double useful_seconds_ = 0;
  uint64_t steps_computed_ = 0;
  SimulationResult result_;
};

void Simulation::Call(size_t worker, const std::function<void(Reply)>& serve,
                      const std::function<void()>& silence) {
  const auto answered = std::make_shared<bool>(false);
  AfterAt(worker, kRetry + options_.lease_seconds, [answered, silence] {
    if (!std::exchange(*answered, true)) silence();
  });
  if (Lost()) return;
  const Reply reply = [this, worker, life = workers_[worker].life, answered](std::function<void()> then) {
    if (workers_[worker].life != life || Lost()) return;
    AfterAt(worker, Exponential(options_.call_seconds), [answered, then = std::move(then)] {
      if (!std::exchange(*answered, true)) then();
    });
  };
  After(Exponential(options_.call_seconds), [this, serve, reply, worker, answered, silence] {
    if (server_ != nullptr) return serve(reply);
    // The connection is refused: no need to wait.
    if (workers_[worker].life == 0) return;
    AfterAt(worker, kRetry, [answered, silence] {
      if (!std::exchange(*answered, true)) silence();
    });
  });
}

void Simulation::StartServer() {
  SplitQueue::Config config;
  config.train_samples = options_.splits;
  config.split_samples = 1;
  config.data_epochs = options_.data_epochs;
  SplitQueue queue = *SplitQueue::Create(config);
  for (const auto& [key, task] : completions_) queue.Complete(task, EvalResult());
  server_ = std::make_unique<Server>(options_, ++cluster_epoch_, frontier_, std::move(queue));
}

void Simulation::StartWorker(size_t worker) {
  Worker& mine = workers_[worker];
  const double slower = mine.slower;
  mine = Worker();
  mine.life = ++lives_;
  mine.slower = slower;
  Register(worker);
  AfterAt(worker, options_.heartbeat_seconds * Uniform(), [this, worker] { Heartbeat(worker); });
}

bool Simulation::Knows(size_t worker, uint64_t cluster_epoch, uint64_t life) {
  return cluster_epoch == server_->cluster_epoch &&
         server_->membership.Hear(IdOf(worker), Incarnation(life), At(now_)).ok();
}

uint64_t Simulation::GrantTo(const Task& task, size_t worker) {
  const LeaseId lease = server_->leases.Grant(task, IdOf(worker), At(now_));
  for (const SplitKey& key : KeysOf(task)) {
    if (!server_->holders.emplace(key, lease).second) {
      Violate(absl::StrCat("split ", key.second, " of data epoch ", key.first, " is leased twice"));
    }
  }
  return lease.value();
}

void Simulation::TakeBack(const Task& task) {
  for (const SplitKey& key : KeysOf(task)) server_->holders.erase(key);
  server_->queue.Return(task);
}

void Simulation::Evict(size_t worker) {
  if (options_.planted != Planted::kForgetsLeasesOfTheDead) {
    for (const Task& task : server_->leases.TakeAllOf(IdOf(worker))) TakeBack(task);
  } else {
    server_->leases.TakeAllOf(IdOf(worker));
  }
  server_->gate.Forget(IdOf(worker));
  AnswerReleased();
}

void Simulation::Register(size_t worker) {
  Worker& mine = workers_[worker];
  mine.registering = true;
  const uint64_t life = mine.life;
  const uint64_t next_step = mine.next_step;
  const std::optional<Task> held =
      mine.held && !mine.held->lost ? std::optional<Task>(mine.held->task) : std::nullopt;
  Call(
      worker,
      [=](const Reply& reply) {
        const WorkerId id = IdOf(worker);
        Membership::Member member;
        member.name = absl::StrCat("w", worker);
        member.incarnation = Incarnation(life);
        const Membership::Member* before = server_->membership.Find(id);
        const bool replaces = before != nullptr && !before->gone && before->incarnation != member.incarnation;
        if (!server_->membership.Admit(id, member, At(now_)).ok()) return;
        if (replaces) Evict(worker);
        server_->gate.Know(id, next_step);
        for (const Task& task : server_->leases.TakeAllOf(id)) TakeBack(task);
        uint64_t lease = 0;
        uint64_t start_step = options_.bound < 0 ? next_step : server_->gate.frontier();
        const std::optional<Task> rest = held ? server_->queue.TakeRest(*held) : std::nullopt;
        if (rest) {
          lease = GrantTo(*rest, worker);
          start_step = Join(worker, life, next_step);
        }
        reply([=, epoch = server_->cluster_epoch] {
          Worker& now = workers_[worker];
          now.registering = false;
          if (now.held && rest && rest->split != now.held->task.split) {
            // Others have done its first splits meanwhile; a push of one of them is not of the next.
            now.held->lost = now.held->lost || now.pushing;
            now.held->task = *rest;
            now.held->steps_done = 0;
            now.held->steps.clear();
          }
          now.cluster_epoch = epoch;
          if (!now.pushing) now.next_step = std::max(now.next_step, start_step);
          if (now.held) {
            now.held->lost = now.held->lost || lease == 0;
            now.held->lease = lease;
          }
          if (now.pushing) return Push(worker);
          now.held ? Compute(worker) : Acquire(worker);
        });
      },
      [=] { Register(worker); });
}

void Simulation::Heartbeat(size_t worker) {
  AfterAt(worker, options_.heartbeat_seconds, [this, worker] { Heartbeat(worker); });
  const Worker& mine = workers_[worker];
  if (mine.registering) return;
  const uint64_t lease = mine.held ? mine.held->lease : 0;
  Call(
      worker,
      [=, life = mine.life, epoch = mine.cluster_epoch](const Reply& reply) {
        if (!Knows(worker, epoch, life)) return;  // Its next call of another kind says so.
        server_->leases.Renew(LeaseId(lease), IdOf(worker), At(now_));
        if (lease == 0 || server_->leases.Holds(LeaseId(lease), IdOf(worker))) return;
        reply([=] {
          Worker& now = workers_[worker];
          if (now.held && now.held->lease == lease) now.held->lost = true;
        });
      },
      [] {});
}

void Simulation::Acquire(size_t worker) {
  const Worker& mine = workers_[worker];
  Call(
      worker,
      [=, life = mine.life, epoch = mine.cluster_epoch, next_step = mine.next_step](const Reply& reply) {
        if (!Knows(worker, epoch, life)) return reply([=] { Register(worker); });
        // As if heartbeats had said how fast it is.
        const double splits_per_second =
            1 / (options_.steps_per_split * options_.step_seconds * workers_[worker].slower);
        const std::optional<Task> task = server_->queue.Next(
            LeaseSplits(splits_per_second, /*split_samples=*/1, absl::Seconds(options_.lease_target),
                        server_->queue.free_splits(), server_->membership.alive()));
        if (!task) {
          server_->gate.Leave(IdOf(worker));
          AnswerReleased();
          return reply([=] { AfterAt(worker, kRetry, [=] { Acquire(worker); }); });
        }
        Held held;
        held.task = *task;
        held.lease = GrantTo(*task, worker);
        const uint64_t start_step = Join(worker, life, next_step);
        reply([=] {
          Worker& now = workers_[worker];
          now.held = held;
          now.next_step = std::max(now.next_step, start_step);
          Compute(worker);
        });
      },
      [=] { Acquire(worker); });
}

void Simulation::Compute(size_t worker) {
  const Worker& mine = workers_[worker];
  if (mine.held->lost) return Complete(worker, /*abandon=*/true);
  if (mine.held->steps_done == options_.steps_per_split) return Complete(worker, /*abandon=*/false);
  AfterAt(worker, options_.step_seconds * mine.slower, [=] {
    ++steps_computed_;
    workers_[worker].pushing = true;
    Push(worker);
  });
}

uint64_t Simulation::Join(size_t worker, uint64_t life, uint64_t next_step) {
  const uint64_t start = server_->gate.Join(IdOf(worker), next_step);
  server_->joined[worker] = {life, start};
  AnswerReleased();
  return start;
}

// By what was applied, not by what the gate believes: everyone who takes part has pushed the last step that
// the bound asks for, if it is not from before its time.
void Simulation::CheckBound(uint64_t step) {
  if (options_.bound < 0 || step < static_cast<uint64_t>(options_.bound)) return;
  const uint64_t needed = step - static_cast<uint64_t>(options_.bound);
  for (const auto& [worker, part] : server_->joined) {
    const auto [life, start] = part;
    if (!server_->gate.active(IdOf(worker)) || start > needed || applied_.count({worker, life, needed}) > 0)
      continue;
    Violate(absl::StrCat("the reply to step ", step, " went out, and worker ", worker,
                         " has not pushed step ", needed));
  }
}

void Simulation::AnswerReleased() {
  for (const StalenessGate::Ticket ticket : server_->gate.TakeReleased()) {
    const auto [answer, step] = server_->waiting[ticket];
    server_->waiting.erase(ticket);
    CheckBound(step);
    answer();
  }
  frontier_ = std::max(frontier_, server_->gate.frontier());
}

void Simulation::Push(size_t worker) {
  const Worker& mine = workers_[worker];
  const uint64_t step = mine.next_step;
  const auto answered = [=](Answer answer) {
    Worker& now = workers_[worker];
    if (answer == Answer::kRegister) return Register(worker);
    now.pushing = false;
    ++now.next_step;
    if (answer == Answer::kDrop) {
      now.held->lost = true;
    } else {
      ++now.held->steps_done;
      now.held->steps.push_back(step);
    }
    Compute(worker);
  };
  Call(
      worker,
      [=, life = mine.life, epoch = mine.cluster_epoch](const Reply& reply) {
        if (!Knows(worker, epoch, life)) return reply([=] { answered(Answer::kRegister); });
        const bool first = applied_.count({worker, life, step}) == 0;
        // A step that was closed without it.
        if (first && options_.bound == 0 && step < server_->gate.frontier()) {
          return reply([=] { answered(Answer::kDrop); });
        }
        if (first) {
          applied_.insert({worker, life, step});
          ++result_.pushes;
        }
        server_->gate.Advance(IdOf(worker), step);
        const auto answer = [=] { reply([=] { answered(Answer::kOk); }); };
        if (server_->gate.Open(step) || options_.planted == Planted::kReleasesEarly) {
          AnswerReleased();
          CheckBound(step);
          return answer();
        }
        const StalenessGate::Ticket ticket = server_->next_ticket++;
        server_->waiting[ticket] = {answer, step};
        server_->gate.Wait(ticket, step, absl::InfiniteFuture());
        AnswerReleased();
      },
      [=] { Push(worker); });
}

void Simulation::Complete(size_t worker, bool abandon) {
  const Worker& mine = workers_[worker];
  const Held held = *mine.held;
  const auto over = [=] {
    workers_[worker].held.reset();
    Acquire(worker);
  };
  const auto next_split = [=] {
    Held& now = *workers_[worker].held;
    if (--now.task.splits == 0) return over();
    now.task.split = SplitId(now.task.split.value() + 1);
    now.task.begin += 1;
    now.steps_done = 0;
    now.steps.clear();
    Compute(worker);
  };
  Call(
      worker,
      [=, life = mine.life, epoch = mine.cluster_epoch](const Reply& reply) {
        if (!Knows(worker, epoch, life)) {
          if (abandon)
            return reply([=] {
              workers_[worker].held.reset();
              Register(worker);
            });
          return reply([=] { Register(worker); });
        }
        const LeaseId lease(held.lease);
        const bool holds = server_->leases.Holds(lease, IdOf(worker));
        if (!holds && (abandon || options_.planted != Planted::kCompletesWithoutLease)) return reply(over);
        if (abandon) {
          TakeBack(*server_->leases.Take(lease, IdOf(worker)));
          return reply(over);
        }
        const Task first = *server_->queue.Find(held.task.kind, held.task.data_epoch, held.task.split);
        if (holds && server_->leases.Find(lease, IdOf(worker))->split != first.split) {
          // Said again: the reply was lost.
          const uint32_t expected = server_->leases.Find(lease, IdOf(worker))->split.value();
          const bool again = first.split.value() + 1 == expected &&
                             server_->queue.done(first.kind, first.data_epoch, first.split);
          if (!again)
            Violate(absl::StrCat("split ", first.split.value(), " is completed, next is ", expected));
          return reply(next_split);
        }
        server_->leases.TakeFirst(lease, IdOf(worker), first);
        server_->holders.erase(KeyOf(first));
        for (const uint64_t step : held.steps) {
          if (applied_.count({worker, life, step}) == 0) {
            Violate(absl::StrCat("split ", held.task.split.value(), " is completed without its step ", step));
          }
        }
        if (held.steps.size() != options_.steps_per_split) Violate("a split is completed with too few steps");
        if (!completions_.emplace(KeyOf(first), first).second) {
          Violate(absl::StrCat("split ", held.task.split.value(), " of data epoch ", held.task.data_epoch,
                               " was completed twice"));
        }
        server_->queue.Complete(first, EvalResult());
        useful_seconds_ += options_.steps_per_split * options_.step_seconds * workers_[worker].slower;
        reply(next_split);
      },
      [=] { Complete(worker, abandon); });
}

void Simulation::Tick() {
  After(kTick, [this] { Tick(); });
  if (server_ == nullptr) return;
  for (const WorkerId id : server_->membership.Expire(At(now_))) Evict(id.value() - 1);
  for (const LeaseTable::Lease& lease : server_->leases.TakeExpired(At(now_))) TakeBack(lease.task);
}

void Simulation::Repeat(size_t which) {
  repeated_[which].what();
  After(Exponential(1 / repeated_[which].rate), [this, which] { Repeat(which); });
}

void Simulation::Failures() {
  const auto repeat = [this](double rate, std::function<void()> what) {
    if (rate <= 0) return;
    repeated_.push_back({rate, std::move(what)});
    After(Exponential(1 / rate), [this, which = repeated_.size() - 1] { Repeat(which); });
  };
  const auto anyone = [this] { return random_() % workers_.size(); };
  repeat(options_.kills_per_second, [this, anyone] {
    size_t worker = anyone();  // Of those who live.
    for (size_t tries = 0; workers_[worker].life == 0; ++tries) {
      if (tries == workers_.size()) return;
      worker = (worker + 1) % workers_.size();
    }
    workers_[worker].life = 0;
    ++result_.kills;
    After(Exponential(options_.replacement_seconds), [this, worker] { StartWorker(worker); });
  });
  repeat(options_.stops_per_second, [this, anyone] {
    Worker& worker = workers_[anyone()];
    if (worker.life == 0 || now_ < worker.stopped_until) return;
    worker.stopped_until = now_ + Exponential(options_.stop_seconds);
    ++result_.stops;
  });
  repeat(options_.server_kills_per_second, [this] {
    if (server_ == nullptr) return;
    server_ = nullptr;
    ++result_.server_kills;
    After(options_.server_seconds, [this] { StartServer(); });
  });
}

SimulationResult Simulation::Run() {
  StartServer();
  workers_.resize(static_cast<size_t>(options_.workers));
  for (size_t worker = 0; worker < workers_.size(); ++worker) {
    workers_[worker].slower = 1 + options_.speed_spread * Uniform();
    StartWorker(worker);
  }
  Tick();
  Failures();
  const size_t all = size_t{options_.data_epochs} * options_.splits;
  while (completions_.size() < all && result_.violation.empty()) {
    if (now_ > options_.give_up_seconds) {
      Violate(absl::StrCat("the job hangs: ", completions_.size(), " of ", all, " splits are completed"));
      break;
    }
    const auto next = events_.top();
    events_.pop();
    now_ = std::get<0>(next);
    std::get<2>(next)();
  }
  result_.seconds = now_;
  result_.goodput = useful_seconds_ / (now_ * options_.workers);
  const uint64_t needed = uint64_t{options_.steps_per_split} * completions_.size();
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
