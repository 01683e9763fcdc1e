#include "server/process/rollbacks.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/snapshot/snapshot_reader.h"
#include "server/recovery/largest_pushes.h"
#include "server/recovery/rollback.h"

namespace recon {
namespace {

// Whoever goes back to the same again and again gets nowhere.
constexpr uint32_t kAutomaticMax = 2;
constexpr size_t kLargestSaid = 3;

}  // namespace

void Rollbacks::Ask(const RollbackRequest& request, Done done) {
  lane_.Post([this, request, done = std::move(done)] { done(Plan(request, /*automatic=*/false)); });
}

absl::StatusOr<RollbackReply> Rollbacks::Plan(const RollbackRequest& request, bool automatic) {
  if (cluster_ != nullptr && request.generation() == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "a job of ", process_.flags().servers,
        " servers goes back to a snapshot only, each has a log of its own: reconctl rollback N"));
  }
  if (certain()) return absl::FailedPreconditionError("a rollback is under way already");
  const ParamServer& params = *process_.params();
  const SnapshotReader reader(process_.store().get());
  RollbackBasis basis;
  basis.reader = &reader;
  basis.files = FileSystem::Local();
  basis.log_directory = process_.log_directory();
  basis.job_id = params.rules().job_id;
  basis.history = params.rules().history;
  basis.last_sequence = params.position().sequence;
  RECON_ASSIGN_OR_RETURN(basis.control, process_.db()->Load());
  RECON_ASSIGN_OR_RETURN(RollbackReply reply, PlanRollback(request, basis));
  reply.set_cluster_epoch(params.rules().cluster_epoch);
  RollbackRecord* plan = reply.mutable_plan();
  plan->set_history(params.rules().history + 1);
  plan->set_unix_ms(absl::ToUnixMillis(WallNow()));
  plan->set_automatic(automatic);
  plan->set_automatic_count(last_.automatic_count() + (automatic ? 1 : 0));
  plan->set_first_step(FirstStepNobodyHasBegun());
  if (request.dry_run()) return reply;
  RECON_RETURN_IF_ERROR(Commit(*plan));
  LogWarn("rollback {} is asked for: from snapshot {} (sequence {}); the state was at sequence {}",
          plan->reason(), plan->generation(), reply.snapshot_sequence(), reply.last_sequence());
  return reply;
}

absl::Status Rollbacks::Commit(const RollbackRecord& plan) {
  // Until the restart, should a snapshot come before it.
  RECON_ASSIGN_OR_RETURN(kept_,
                         ReaderLease::TakeIfWritable(process_.store().get(), Generation(plan.generation())));
  RECON_RETURN_IF_ERROR(process_.db()->rollbacks().SaveNext(plan));
  certain_.store(true);
  return absl::OkStatus();
}

uint64_t Rollbacks::FirstStepNobodyHasBegun() const {
  const int bound = process_.params()->rules().bound;
  if (cluster_ == nullptr || bound < 0) return 0;
  const uint64_t frontier =
      std::max(process_.params()->members()->frontier(), cluster_->state().highest_frontier);
  return frontier + limits::kStepsAheadMax + static_cast<uint64_t>(bound) + 1;
}

absl::Status Rollbacks::GoBackTogether(uint64_t generation, const std::string& why) {
  RollbackRecord plan;
  plan.set_generation(generation);
  plan.set_history(process_.params()->rules().history + 1);
  plan.set_first_step(FirstStepNobodyHasBegun());
  plan.set_reason(absl::StrCat("to snapshot ", generation, ", ", why));
  plan.set_unix_ms(absl::ToUnixMillis(WallNow()));
  plan.set_automatic_count(last_.automatic_count());
  absl::Status committed;
  lane_.RunAndWait([&] { committed = certain() ? absl::OkStatus() : Commit(plan); });
  return committed;
}

void Rollbacks::SayLargestPushes(const absl::StatusOr<Generation>& good) {
  uint64_t first = 1;
  std::string since = "since the job began";
  if (good.ok()) {
    const absl::StatusOr<Manifest> manifest = SnapshotReader(process_.store().get()).ReadManifest(*good);
    if (!manifest.ok()) return;
    first = manifest->sequence() + 1;
    since = absl::StrCat("since snapshot ", good->value());
  }
  if (largest_said_for_ == first) return;
  largest_said_for_ = first;
  const absl::StatusOr<LargestPushes> found =
      FindLargestPushes(FileSystem::Local(), process_.log_directory(), first,
                        process_.params()->position().sequence, kLargestSaid);
  const absl::StatusOr<ControlState> control = process_.db()->Load();
  if (!found.ok() || !control.ok() || found->pushes == 0) return;
  std::map<uint32_t, std::string> names;
  for (const auto& [name, number] : control->workers) names[number] = name;
  std::string said;
  for (const PushNorm& push : found->largest) {
    absl::StrAppend(&said, said.empty() ? "" : ", ", names[push.worker.value()], ":", push.step, " (",
                    push.norm, ")");
  }
  LogWarn(
      "{} pushes are in the log {}; those with the largest gradients, by their L2 norms: {}; the median is "
      "{:.4g}. reconctl undo WORKER:STEP takes one out",
      found->pushes, since, said, found->median_norm);
}

absl::Status Rollbacks::OnDivergence(const DivergenceWatch::Finding& finding) {
  const ServerFlags::OnDivergence wanted = process_.flags().on_divergence;
  if (certain()) return absl::OkStatus();
  const absl::StatusOr<Generation> good = LastGoodBefore(
      finding.since, SnapshotReader(process_.store().get()), process_.params()->rules().job_id, last_);
  if (wanted == ServerFlags::OnDivergence::kIgnore) {
    lane_.Post([this, good] { SayLargestPushes(good); });
    return absl::OkStatus();
  }
  lane_.RunAndWait([this, good] { SayLargestPushes(good); });  // Before a rollback leaves them behind.
  const std::string where = good.ok() ? absl::StrCat("; the last good snapshot is ", good->value()) : "";
  if (wanted == ServerFlags::OnDivergence::kStop) {
    return absl::AbortedError(absl::StrCat("training has diverged: ", finding.why, where,
                                           " (start with --on-divergence ignore, then reconctl rollback)"));
  }
  if (last_.automatic_count() >= kAutomaticMax) {
    return absl::AbortedError(absl::StrCat("training has diverged again, after ", kAutomaticMax,
                                           " rollbacks: ", finding.why, where));
  }
  absl::Status status = good.status();
  if (good.ok()) {
    RollbackRequest request;
    request.set_generation(good->value());
    lane_.RunAndWait([&] { status = Plan(request, /*automatic=*/true).status(); });
  }
  if (status.ok() || certain()) return absl::OkStatus();
  return absl::AbortedError(
      absl::StrCat("training has diverged: ", finding.why, "; no rollback: ", status.message()));
}

}  // namespace recon
