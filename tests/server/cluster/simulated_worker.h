#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "tests/server/cluster/follower_node.h"
#include "tests/server/cluster/head_node.h"

namespace recon {

// What the workers know of their pushes: each push takes a value of its own from every parameter, so that the
// sum says which of them count, and how often. Thread-safe.
class Oracle {
 public:
  struct Push {
    uint64_t step = 0;
    uint32_t worker = 0;
    bool acknowledged = false;  // Else it may count on some shards: its worker died, or was told so.
  };
  // Values are whole numbers, and so are means of two: sums are exact in FP32, in any order.
  static constexpr int kPushesMax = 22;
  static float ValueOf(int push) { return static_cast<float>(uint32_t{2} << push); }

  // A number for a push that is about to be sent; none: there are no more.
  std::optional<int> Begin() {
    MutexLock lock(&mu_);
    if (next_ == kPushesMax) return std::nullopt;
    return next_++;
  }
  void Acknowledge(int push, uint32_t worker, uint64_t step) {
    MutexLock lock(&mu_);
    pushes_[push] = {step, worker, true};
  }
  void LoseSightOf(int push, uint32_t worker, uint64_t step) {
    MutexLock lock(&mu_);
    pushes_[push] = {step, worker, false};
  }
  void Violation(const std::string& what) {
    MutexLock lock(&mu_);
    violations_.push_back(what);
  }
  std::map<int, Push> pushes() {
    MutexLock lock(&mu_);
    return pushes_;
  }
  std::vector<std::string> violations() {
    MutexLock lock(&mu_);
    return violations_;
  }

 private:
  Mutex mu_;
  int next_ = 0;
  std::map<int, Push> pushes_;
  std::vector<std::string> violations_;
};

// The job's servers, as a worker sees them.
struct ClusterNodes {
  HeadNode* head;
  std::vector<FollowerNode*> others;
  MemoryNet* net;

  void Handle(uint32_t server, const ByteChain& frame, Incarnation sender, FrameDone done) const {
    if (server == 0) return head->Handle(frame, sender, std::move(done));
    others[server - 1]->Handle(frame, sender, std::move(done));
  }
};

// Frames under way to some servers, and what came back. Outlives them.
class Exchange {
 public:
  void Send(const ClusterNodes& nodes, uint32_t server, const ByteChain& frame, Incarnation sender) {
    {
      MutexLock lock(&state_->mu);
      state_->awaited.insert(server);
    }
    nodes.Handle(server, frame, sender,
                 [state = state_, server, net = nodes.net](const absl::StatusOr<ByteChain>& reply) {
                   net->NoteEvent();
                   MutexLock lock(&state->mu);
                   state->awaited.erase(state->awaited.find(server));
                   state->replies.emplace(server, reply);
                 });
  }
  // False if some reply does not come in time.
  bool Await(absl::Time deadline) {
    MutexLock lock(&state_->mu);
    return state_->mu.AwaitFor(deadline - Now(), [this] { return state_->awaited.empty(); });
  }
  std::string Awaited() {
    MutexLock lock(&state_->mu);
    return absl::StrJoin(state_->awaited, ", ");
  }
  // By server; more than one if it was asked twice.
  std::multimap<uint32_t, absl::StatusOr<ByteChain>> replies() {
    MutexLock lock(&state_->mu);
    return state_->replies;
  }

 private:
  struct State {
    Mutex mu;
    std::multiset<uint32_t> awaited;  // By server.
    std::multimap<uint32_t, absl::StatusOr<ByteChain>> replies;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// A worker that pushes so many times, one push after the other, and dies where it is told to. It is a
// worker's rules that it keeps: it sends a push again until it is acknowledged or refused for good.
//
// Threads: Run() on one of its own.
class SimulatedWorker {
 public:
  struct Options {
    uint32_t worker = 1;
    int pushes = 4;
    uint64_t seed = 1;
    std::optional<int> dies_at;  // Within this push.
    absl::Time deadline;         // By when something must have hung.
  };
  SimulatedWorker(const Options& options, const ClusterNodes& nodes, Oracle* oracle)
      : options_(options), nodes_(nodes), oracle_(oracle), random_(options.seed) {}

  void Run() {
    for (int i = 0; i < options_.pushes && PushOnce(options_.dies_at == i); ++i) {
    }
    Call([this](HeadLife* head) { head->Expel(WorkerId(options_.worker)); });
  }

 private:
  Incarnation incarnation() const { return Incarnation(options_.worker * 100 + lives_); }
  std::string Name() const { return absl::StrCat("worker ", options_.worker, " life ", lives_); }

  // False if the job has to end.
  bool PushOnce(bool dies) {
    const std::optional<int> push = oracle_->Begin();
    if (!push) return false;
    std::set<uint32_t> acknowledged;
    bool begun = false;
    while (true) {
      if (!cluster_epoch_ && !Register(begun)) return false;
      begun = true;
      if (dies) return Die(*push);
      Exchange exchange;
      for (uint32_t server = 0; server < kClusterServers; ++server) {
        if (acknowledged.count(server) > 0) continue;
        const int copies = random_() % 8 == 0 ? 2 : 1;
        for (int i = 0; i < copies; ++i) exchange.Send(nodes_, server, FrameOf(*push, server), incarnation());
      }
      if (!exchange.Await(options_.deadline)) {
        return Fail(absl::StrCat(Name(), " waits for ever for the reply to step ", step_, ", epoch ",
                                 *cluster_epoch_, ", of servers ", exchange.Awaited()));
      }
      bool refused = false;
      bool later = false;
      for (const auto& [server, reply] : exchange.replies()) {
        if (reply.ok()) acknowledged.insert(server);
        refused = refused || absl::IsAborted(reply.status());
        later = later || absl::IsUnavailable(reply.status()) || absl::IsDeadlineExceeded(reply.status());
        if (absl::IsFailedPrecondition(reply.status())) cluster_epoch_.reset();
        if (absl::IsInvalidArgument(reply.status()) || absl::IsPermissionDenied(reply.status())) {
          return Fail(
              absl::StrCat(Name(), ", step ", step_, ", server ", server, ": ", reply.status().ToString()));
        }
      }
      if (refused) return GiveUp(*push);
      if (acknowledged.size() == kClusterServers) break;
      if (later && !WaitForNews()) return false;
    }
    oracle_->Acknowledge(*push, options_.worker, step_);
    next_step_ = ++step_;
    // As its next heartbeat does: of what was acknowledged before an interruption nothing is sent again.
    nodes_.head->With([this](HeadLife* head) {
      head->NoteAcknowledged(WorkerId(options_.worker), incarnation(), next_step_);
    });
    return true;
  }

  // A step was closed without it: what it computed is done again by somebody, in another one.
  bool GiveUp(int push) {
    oracle_->LoseSightOf(push, options_.worker, step_);
    next_step_ = step_ + 1;
    cluster_epoch_.reset();
    return true;
  }

  // Some of the servers get its last push, and it is gone. Later another process of its name comes, and what
  // the first one has sent may come once more.
  bool Die(int push) {
    Exchange sent;
    std::vector<std::pair<uint32_t, ByteChain>> frames;
    for (uint32_t server = 0; server < kClusterServers; ++server) {
      if (random_() % 3 == 0) continue;
      frames.emplace_back(server, FrameOf(push, server));
      sent.Send(nodes_, server, frames.back().second, incarnation());
    }
    oracle_->LoseSightOf(push, options_.worker, step_);
    const Incarnation dead = incarnation();
    ++lives_;
    cluster_epoch_.reset();
    next_step_ = 0;
    step_ = 0;
    if (random_() % 2 == 0 && !Call([this](HeadLife* head) { head->Expel(WorkerId(options_.worker)); })) {
      return false;
    }
    if (!Register(/*resumes=*/false)) return false;
    for (const auto& [server, frame] : frames) {
      if (random_() % 2 == 0) sent.Send(nodes_, server, frame, dead);
    }
    return true;
  }

  bool Register(bool resumes) {
    while (Now() < options_.deadline) {
      absl::StatusOr<Registered> registered = absl::UnavailableError("no head");
      nodes_.head->With([&](HeadLife* head) {
        registered =
            head->Register(WorkerId(options_.worker), incarnation(), resumes ? step_ : next_step_, resumes);
      });
      if (registered.ok()) {
        cluster_epoch_ = registered->cluster_epoch;
        if (!resumes) step_ = registered->step;
        return true;
      }
      if (!WaitForNews()) return false;
    }
    return Fail(absl::StrCat(Name(), " cannot register"));
  }

  template <typename Use>
  bool Call(Use use) {
    while (!nodes_.head->With(use)) {
      if (!WaitForNews()) return false;
    }
    return true;
  }
  // Something has happened, or a moment has passed: time to try again.
  bool WaitForNews() {
    if (Now() >= options_.deadline) return Fail(absl::StrCat(Name(), " has tried for too long"));
    nodes_.net->AwaitMessages(nodes_.net->messages() + 3, absl::Milliseconds(2));
    return true;
  }
  bool Fail(const std::string& what) {
    oracle_->Violation(what);
    return false;
  }
  ByteChain FrameOf(int push, uint32_t server) const {
    return FrameFor(server, FrameKind::kPushPull, WorkerId(options_.worker), incarnation(), *cluster_epoch_,
                    step_, Oracle::ValueOf(push));
  }

  const Options options_;
  const ClusterNodes nodes_;
  Oracle* const oracle_;
  std::mt19937_64 random_;

  uint32_t lives_ = 1;
  std::optional<uint64_t> cluster_epoch_;  // Unless it has to register.
  uint64_t next_step_ = 0;                 // It has an acknowledgement of all before.
  uint64_t step_ = 0;                      // Of its push.
};

}  // namespace recon
