#include "server/process/rollbacks.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
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
  if (process_.flags().servers > 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("a job of ", process_.flags().servers,
                     " servers cannot go back while it runs, each has a log of its own: drain it, and begin "
                     "another from the snapshot (--from-snapshot DIR:N)"));
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
  if (request.dry_run()) return reply;
  // Until the restart, should a snapshot come before it.
  RECON_ASSIGN_OR_RETURN(kept_,
                         ReaderLease::TakeIfWritable(process_.store().get(), Generation(plan->generation())));
  RECON_RETURN_IF_ERROR(process_.db()->rollbacks().SaveNext(*plan));
  LogWarn("rollback {} is asked for: from snapshot {} (sequence {}); the state was at sequence {}",
          plan->reason(), plan->generation(), reply.snapshot_sequence(), reply.last_sequence());
  certain_.store(true);
  return reply;
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
