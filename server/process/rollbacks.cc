#include "server/process/rollbacks.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/snapshot/snapshot_reader.h"
#include "server/recovery/rollback.h"

namespace recon {
namespace {

// Whoever goes back to the same again and again gets nowhere.
constexpr uint32_t kAutomaticMax = 2;

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
  const SnapshotReader reader(process_.store());
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
                         ReaderLease::TakeIfWritable(process_.store(), Generation(plan->generation())));
  RECON_RETURN_IF_ERROR(process_.db()->SaveNextRollback(*plan));
  LogWarn("rollback {} is asked for: from snapshot {} (sequence {}); the state was at sequence {}",
          plan->reason(), plan->generation(), reply.snapshot_sequence(), reply.last_sequence());
  certain_.store(true);
  return reply;
}

absl::Status Rollbacks::OnDivergence(const DivergenceWatch::Finding& finding) {
  const ServerFlags::OnDivergence wanted = process_.flags().on_divergence;
  if (wanted == ServerFlags::OnDivergence::kIgnore || certain()) return absl::OkStatus();
  const absl::StatusOr<Generation> good = LastGoodBefore(finding.since, SnapshotReader(process_.store()),
                                                         process_.params()->rules().job_id, last_);
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
