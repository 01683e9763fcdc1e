#include "server/control/job_parameters.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/snapshot/tensor_match.h"
#include "server/control/job_lifecycle.h"
#include "server/control/policy.h"

namespace recon {
namespace {

// Where fewer pushes lie between two snapshots, these are what the server does most of the time.
constexpr uint64_t kPushesPerSnapshotMin = 16;

}  // namespace

JobParameters::JobParameters(const CoordinatorPorts& ports, std::function<void()> snapshot_ended)
    : ports_(ports), snapshot_ended_(std::move(snapshot_ended)) {}

absl::Status JobParameters::Define(const ModelSpec& model) {
  if (initial_ != nullptr) RECON_RETURN_IF_ERROR(initial_->Check(model));
  return ports_.params->DefineModel(model);
}

absl::Status JobParameters::Restore(const ModelSpec& model, const JobConfig& job) {
  if (ports_.params->layout() == nullptr) {
    RECON_RETURN_IF_ERROR(Define(model));
    LoadInitialValues();
  }
  const std::string difference = ModelDifference(model, ports_.params->layout()->model());
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the snapshots are not of this data directory's job: ", difference));
  }
  RECON_RETURN_IF_ERROR(CheckSyncPeriods(job, *ports_.params->layout()));
  WarnOfSmallLog();
  if (ports_.others != nullptr) ports_.others->SetModel(model);
  return absl::OkStatus();
}

absl::Status JobParameters::Adopt(const ModelSpec& model, const JobConfig& job) {
  const auto layout = ports_.params->layout();
  if (layout != nullptr) {
    const std::string difference = ModelDifference(layout->model(), model);
    if (!difference.empty()) {
      const bool same_tensors = ModelsHaveSameTensors(layout->model(), model);
      return absl::InvalidArgumentError(absl::StrCat(
          "the job trains another model: ", difference,
          same_tensors ? "; the tensors are the same, in another order or in other groups: a new job "
                         "takes them from its snapshots by name (--from-snapshot)"
                       : ""));
    }
    return CheckSyncPeriods(job, *layout);  // It may be another job's snapshot's.
  }
  RECON_ASSIGN_OR_RETURN(const ParamLayout its_layout, ParamLayout::Create(model));
  RECON_RETURN_IF_ERROR(CheckSyncPeriods(job, its_layout));
  RECON_RETURN_IF_ERROR(Define(model));
  LogInfo("model {}: {} parameters in {} shards", model.name(), ports_.params->layout()->params(),
          ports_.params->layout()->shard_count());
  WarnOfSmallLog();
  if (ports_.others != nullptr) ports_.others->SetModel(model);
  LoadInitialValues();
  return absl::OkStatus();
}

void JobParameters::WarnOfSmallLog() const {
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

bool JobParameters::HasValues() const {
  return ports_.params->has_values() && (ports_.others == nullptr || ports_.others->state().all_have_values);
}

bool JobParameters::NeedsWorkersValues(bool started) const {
  if (HasValues() || initial_ != nullptr || started || saved()) return false;
  return ports_.others == nullptr || ports_.others->state().live;
}

bool JobParameters::AskWorker(WorkerId worker, const Membership& membership, uint64_t cluster_epoch) {
  if (asked_ && *asked_ != worker) {
    const Membership::Member* other = membership.Find(*asked_);
    if (other != nullptr && !other->gone) return false;
  }
  // It tries again: what has come stays.
  if (asked_ == worker && asked_in_epoch_ == cluster_epoch) return true;
  asked_ = worker;
  asked_in_epoch_ = cluster_epoch;
  ports_.params->AwaitInitialValues(worker, [this] { OnInitialValues(); });
  if (ports_.others != nullptr) ports_.others->AwaitInitialValues(worker);
  return true;
}

void JobParameters::LoadInitialValues() {
  if (initial_ == nullptr) return;
  initial_->Load([this](const absl::Status& loaded) {
    failure_ = loaded;
    if (loaded.ok()) OnInitialValues();
  });
}

void JobParameters::OnInitialValues() {
  if (!HasValues()) return;
  LogInfo("initial values are there");
  TakeSnapshot();
}

void JobParameters::OnServersLive(bool started) {
  if ((asked_ || initial_ != nullptr) && !started && !saved()) OnInitialValues();
}

void JobParameters::OnEpochBegun() {
  if (HasValues() && (must_snapshot_ || ports_.others->state().needs_snapshot)) TakeSnapshot();
  must_snapshot_ = false;
}

void JobParameters::TakeSnapshot() {
  // Before any work: a job that has begun can always be restored, and so can servers that have begun a log.
  snapshot_retry_at_ = absl::InfiniteFuture();
  ports_.snapshots->Take(saved() ? "recovered" : "initial",
                         [this](const absl::Status& taken, absl::Time now) {
                           if (!taken.ok()) snapshot_retry_at_ = now + JobLifecycle::kSnapshotRetry;
                           snapshot_ended_();
                         });
}

void JobParameters::Tick(absl::Time now) {
  if (now >= snapshot_retry_at_) TakeSnapshot();
}

}  // namespace recon
