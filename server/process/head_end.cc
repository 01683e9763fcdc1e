// Of Head: how it ends.

#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/process.h"
#include "common/base/shutdown_signal.h"
#include "server/process/head.h"

namespace recon {
namespace {

constexpr absl::Duration kDrainTimeout = absl::Seconds(10);
// A store that does not answer is asked again for so long then.
constexpr absl::Duration kDrainPatience = absl::Seconds(5);
constexpr absl::Duration kToldWithin = absl::Seconds(1);  // Workers, of a drain, with a heartbeat.
constexpr char kIdlePayload[] = "recon/idle";

}  // namespace

bool EndedIdle(const absl::Status& status) { return status.GetPayload(kIdlePayload).has_value(); }

absl::Status Head::Drain(bool for_good) {
  ParamServer* const params = process_.params();
  const std::string signal = ShutdownSignal::Name();
  LogInfo("draining{}{}", signal.empty() ? "" : ": ", signal);
  process_.rpc()->SetServing(false);
  // The push log has everything.
  if (process_.flags().log.durability != ServerFlags::Durability::kSnapshot)
    process_.store()->CapPatience(kDrainPatience);
  coordinator_->lane()->RunAndWait([this] { coordinator_->BeginDrain(); });
  const absl::Time began = Now();
  NoteStatus();
  params->BeginDrain();
  const bool others_idle = cluster_ == nullptr || !for_good || cluster_->Drain(kDrainTimeout);
  if (!params->WaitUntilIdle(kDrainTimeout) || !others_idle)
    LogWarn("some pushes were still running after {}", absl::FormatDuration(kDrainTimeout));
  const absl::Status status = TakeDrainSnapshot(for_good);
  coordinator_->AwaitHeardOfAllSince(began, kToldWithin);
  if (cluster_ != nullptr) {
    cluster_->End(/*servers_too=*/for_good && status.ok());
    if (!for_good)
      LogInfo("the other servers go on, and wait for the next head: reconctl drain ends them, too");
  }
  DrainReply outcome;
  const SnapshotStatus snapshot = snapshots_->status();
  outcome.set_generation(snapshot.generation());
  outcome.set_state_root(snapshot.state_root());
  outcome.set_snapshot_error(std::string(status.message()));
  outcome.set_process(static_cast<uint32_t>(getpid()));
  outcome.set_process_namespace(ProcessNamespace());
  NoteStatus();
  control_service_->FinishDrains(outcome);
  return status;
}

absl::Status Head::EndWith(const absl::Status& outcome) {
  if (ending_ != nullptr) ending_(outcome);
  StopServing(absl::Seconds(1));
  return outcome;
}

absl::Status Head::TakeDrainSnapshot(bool for_good) {
  if (!process_.params()->has_values()) return absl::OkStatus();
  absl::Status taken = TakeSnapshot("drain", snapshots_.get());
  const bool log_has_all = process_.flags().log.durability != ServerFlags::Durability::kSnapshot;
  if (taken.ok() || for_good || cluster_ == nullptr || cluster_->state().live || !log_has_all) return taken;
  // Of all servers that are stopped at once one is the first.
  LogInfo("no snapshot at this end: {}. The push logs have everything", cluster_->Missing());
  return absl::OkStatus();
}

absl::Status Head::EndIdle() {
  const ServerFlags& flags = process_.flags();
  bool finished = false;
  int workers = 0;
  coordinator_->lane()->RunAndWait([&] {
    finished = coordinator_->finished();
    workers = coordinator_->workers_alive();
  });
  const std::string why =
      absl::StrCat(finished ? "the job is done, and " : "", "nobody has trained it for ",
                   absl::FormatDuration(flags.idle_timeout), " (--idle-timeout); workers: ", workers);
  LogWarn("{}", why);
  const absl::Status drained = Drain(/*for_good=*/true);
  // Where there is a push log it has everything: no snapshot is missing that would be worth another start.
  if (!drained.ok() && flags.log.durability == ServerFlags::Durability::kSnapshot) return drained;
  if (finished && drained.ok()) return absl::OkStatus();
  absl::Status status = absl::CancelledError(
      drained.ok() ? why : absl::StrCat(why, "; its last snapshot failed: ", drained.message()));
  status.SetPayload(kIdlePayload, {});
  return status;
}

void Head::StopServing(absl::Duration timeout) {
  // Calls that wait are answered: the port's end waits for them.
  if (control_service_ != nullptr)
    control_service_->FinishDrains(absl::UnavailableError("the server ends without a drain"));
  if (trace_service_ != nullptr) trace_service_->Close();
  if (cluster_ != nullptr) cluster_->End(/*servers_too=*/false);
  if (cluster_service_ != nullptr)
    cluster_service_->Close(absl::UnavailableError("the head ends its process, and another one is to come"));
  process_.StopServing(timeout);
}

Head::~Head() {
  if (dashboard_ != nullptr) dashboard_->Detach();
  if (worker_series_ != nullptr) worker_series_->Close();
  // Waiting replies first: the RPC server cannot end while they are open. Then what the lanes have posted
  // to each other, while both ends still exist.
  if (serves_) process_.params()->BeginDrain();
  StopServing(absl::ZeroDuration());
  if (coordinator_ != nullptr) coordinator_->lane()->RunAndWait([] {});  // What servers have said until now.
  if (!serves_) return;
  coordinator_->lane()->RunAndWait([this] { coordinator_->BeginDrain(); });
  snapshots_->Flush();
}

}  // namespace recon
