#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/control/ports.h"

// A coordinator's ports, in memory: they remember what they were told, and fail when a test says so.
namespace recon {

// One server's data plane. Nothing is pushed here but by Push().
class FakeDataPlane final : public DataPlaneControl, public StepMembers {
 public:
  // A push of the worker comes whole.
  void Push(WorkerId worker) { ++pushes_[worker]; }
  // The initial values come, and whoever waits for them is told.
  void BringValues() {
    has_values_ = true;
    if (ready_) ready_();
  }

  std::shared_ptr<const ParamLayout> layout() const override { return layout_; }
  absl::Status DefineModel(const ModelSpec& model) override {
    absl::StatusOr<ParamLayout> layout = ParamLayout::Create(model);
    if (layout.ok()) layout_ = std::make_shared<const ParamLayout>(*std::move(layout));
    return layout.status();
  }
  bool has_values() const override { return has_values_; }
  void AwaitInitialValues(WorkerId worker, std::function<void()> ready) override {
    initializer = worker;
    ++times_awaited;
    ready_ = std::move(ready);
  }
  void AwaitState(WorkerId worker, uint64_t upload,
                  std::function<void(uint64_t step, absl::Time now)> staged) override {
    state_asked_of = worker;
    upload_asked_for = upload;
    state_staged_ = std::move(staged);
  }
  absl::Status CommitState(uint64_t upload) override {
    the_state_version = upload;
    return absl::OkStatus();
  }
  uint64_t state_version() const override { return the_state_version; }
  // The state before the step comes whole of the worker that was asked for it.
  void BringState(uint64_t step, absl::Time now) {
    state_asked_of.reset();
    state_staged_(step, now);
  }
  void SetClusterEpoch(uint64_t epoch) override { cluster_epoch = epoch; }
  ApplyRules rules() const override { return rules_; }
  absl::Status ChangeRules(const ApplyRules& rules, uint64_t first_step, absl::Duration* took) override {
    *took = change_takes;
    if (!change_fails.ok()) return change_fails;
    rules_ = rules;
    cluster_epoch = rules.cluster_epoch;
    the_frontier = std::max(the_frontier, first_step);
    return absl::OkStatus();
  }
  void SetQuorum(uint32_t workers, std::optional<absl::Duration>) override { quorum = workers; }
  LogUse log_use() const override { return log; }
  ParamStats GetStats() const override {
    ParamStats stats;
    stats.frontier_step = the_frontier;
    stats.non_finite = non_finite;
    for (const auto& [worker, pushes] : pushes_) {
      stats.pushes += pushes;
      stats.workers[worker].pushes = pushes;
      stats.workers[worker].active = active(worker);
    }
    return stats;
  }
  void Tick(absl::Time) override {}

  void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) override {
    if (admitted[worker] != incarnation) pushes_[worker] = 0;
    admitted[worker] = incarnation;
    next_steps[worker] = next_step;
  }
  void Expel(WorkerId worker) override {
    admitted.erase(worker);
    active_.erase(worker);
    pushes_.erase(worker);
  }
  uint64_t Activate(WorkerId worker, uint64_t next_step, bool resumes) override {
    active_.insert(worker);
    parked.erase(worker);
    return resumes ? next_step : std::max(next_step, the_frontier);
  }
  void Deactivate(WorkerId worker) override { active_.erase(worker); }
  void Park(WorkerId worker) override {
    active_.erase(worker);
    parked.insert(worker);
  }
  bool active(WorkerId worker) const override { return active_.count(worker) > 0; }
  bool awaited(WorkerId worker) const override { return awaited_workers.count(worker) > 0; }
  void NoteAcknowledged(WorkerId worker, uint64_t next_step) override { next_steps[worker] = next_step; }
  uint64_t PushesOf(WorkerId worker) const override {
    const auto found = pushes_.find(worker);
    return found == pushes_.end() ? 0 : found->second;
  }
  bool Knows(Incarnation process) const override {
    return std::any_of(admitted.begin(), admitted.end(),
                       [process](const auto& worker) { return worker.second == process; });
  }
  uint64_t frontier() const override { return the_frontier; }
  void SkipTo(uint64_t frontier) override { the_frontier = std::max(the_frontier, frontier); }

  // For a test to read and to set.
  uint64_t the_frontier = 0;
  uint64_t cluster_epoch = 1;
  uint32_t quorum = 0;
  std::optional<WorkerId> initializer;
  std::optional<WorkerId> state_asked_of;
  uint64_t upload_asked_for = 0;
  uint64_t the_state_version = 0;
  int times_awaited = 0;
  std::set<WorkerId> awaited_workers;
  absl::Status change_fails;
  absl::Duration change_takes;
  LogUse log;
  std::optional<NonFiniteUpdate> non_finite;
  std::map<WorkerId, Incarnation> admitted;
  std::map<WorkerId, uint64_t> next_steps;
  std::set<WorkerId> parked;

 private:
  std::shared_ptr<const ParamLayout> layout_;
  std::function<void(uint64_t step, absl::Time now)> state_staged_;
  bool has_values_ = false;
  std::function<void()> ready_;
  ApplyRules rules_;
  std::map<WorkerId, uint64_t> pushes_;
  std::set<WorkerId> active_;
};

// Snapshots that end when a test says so, in the order they were asked for.
class FakeSnapshots final : public Snapshots {
 public:
  void Take(const std::string& reason, Done done) override { asked_.emplace_back(reason, std::move(done)); }
  void TakeLast(Done done) override { asked_.emplace_back("final", std::move(done)); }
  void TakeInBackground(const std::string& reason) override { background.push_back(reason); }
  void RestoreState(uint64_t upload, Done done) override {
    restored_as = upload;
    restored_ = std::move(done);
  }
  void EndRestore(const absl::Status& restored, absl::Time now) { restored_(restored, now); }
  void Tick(absl::Time) override { ++ticks; }
  SnapshotStatus status() const override { return the_status; }

  // The reason of the one that is under way; empty if none is.
  std::string under_way() const { return asked_.empty() ? "" : asked_.front().first; }
  void Publish(absl::Time now) {
    the_status.set_generation(the_status.generation() + 1);
    End(absl::OkStatus(), now);
  }
  void Fail(absl::Time now) { End(absl::UnavailableError("the store is away"), now); }

  SnapshotStatus the_status;
  std::vector<std::string> background;
  int ticks = 0;
  std::optional<uint64_t> restored_as;  // What it was asked to restore the workers' state as, last.

 private:
  void End(const absl::Status& taken, absl::Time now) {
    const Done done = std::move(asked_.front().second);
    asked_.erase(asked_.begin());
    done(taken, now);
  }
  std::vector<std::pair<std::string, Done>> asked_;
  Done restored_;
};

// Outlives a coordinator, as a disk does.
class FakeJournal final : public Journal {
 public:
  absl::StatusOr<uint64_t> NextClusterEpoch(uint64_t last) override {
    if (!fails.ok()) return fails;
    epoch = std::max(epoch, last) + 1;
    return epoch;
  }
  absl::StatusOr<std::optional<JobRecord>> LoadJob() const override { return job; }
  absl::Status SaveJob(const JobRecord& record) override {
    if (fails.ok()) job = record;
    return fails;
  }
  absl::Status SavePolicy(const PolicyRecord& record) override {
    if (fails.ok()) policy = record;
    return fails;
  }
  absl::StatusOr<WorkerId> WorkerIdFor(const std::string& name) override {
    if (!fails.ok()) return fails;
    return workers.emplace(name, WorkerId(static_cast<uint32_t>(workers.size() + 1))).first->second;
  }
  absl::Status SaveCompletion(const Completion& completion) override {
    if (!fails.ok()) return fails;
    const bool first = completions.emplace(ControlState::KeyOf(completion), completion).second;
    return first ? absl::OkStatus() : absl::AlreadyExistsError("the split is completed already");
  }
  absl::StatusOr<std::vector<Completion>> LoadCompletions() const override {
    std::vector<Completion> all;
    for (const auto& [split, completion] : completions) all.push_back(completion);
    return all;
  }

  absl::Status fails;  // Of everything that is saved, while it is not OK.
  uint64_t epoch = 1;
  std::optional<JobRecord> job;
  std::optional<PolicyRecord> policy;
  std::map<std::string, WorkerId> workers;
  std::map<ControlState::SplitKey, Completion> completions;
};

class FakeServers final : public OtherServers {
 public:
  uint32_t servers() const override { return 3; }
  ServersState state() const override { return the_state; }
  std::string Missing() const override { return the_state.live ? "" : "server 2, which is away"; }
  void TellWaits(const std::string& waits_for) override { told = waits_for; }
  void SetModel(const ModelSpec& model) override { models.push_back(model.name()); }
  void BeginEpoch(uint64_t epoch) override {
    epochs.push_back(epoch);
    the_state.live = true;
  }
  void Admit(WorkerId worker, Incarnation, uint64_t) override { admitted.insert(worker); }
  void Expel(WorkerId worker) override { admitted.erase(worker); }
  void AwaitInitialValues(WorkerId worker) override { initializers.push_back(worker); }
  void AwaitState(WorkerId, uint64_t upload,
                  std::function<void(uint32_t server, uint64_t step, absl::Time now)> staged) override {
    upload_asked_for = upload;
    state_staged = std::move(staged);
  }
  void Tick(absl::Time) override {}
  std::vector<ServerAddress> Addresses() const override { return std::vector<ServerAddress>(2); }
  std::vector<ServerStatus> Status(absl::Time) const override { return std::vector<ServerStatus>(2); }

  ServersState the_state;
  std::vector<std::string> models;
  std::vector<uint64_t> epochs;
  std::set<WorkerId> admitted;
  std::vector<WorkerId> initializers;
  uint64_t upload_asked_for = 0;
  // A server says that it has its part of that upload.
  std::function<void(uint32_t server, uint64_t step, absl::Time now)> state_staged;
  std::string told;  // What the job waits for, by the last that was said.
};

}  // namespace recon
