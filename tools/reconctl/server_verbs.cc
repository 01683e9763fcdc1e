#include <unistd.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clock.h"
#include "common/base/data_epoch.h"
#include "common/base/host_port.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/json/escape_texts.h"
#include "common/json/message_json.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "common/rpc/tls_probe.h"
#include "common/snapshot/safetensors.h"
#include "server/control/policy.h"
#include "tools/reconctl/render.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

absl::StatusOr<std::unique_ptr<ControlClient>> Connect(const ServerTarget& target) {
  RECON_RETURN_IF_ERROR(CheckAddress("--server", target.address));
  RECON_ASSIGN_OR_RETURN(const auto channel, ConnectTo(target.address, target.tls));
  RECON_ASSIGN_OR_RETURN(const Caller caller, CallerFor(target.tls));
  return std::make_unique<ControlClient>(channel, absl::Seconds(3), caller);
}

const char* PhaseName(JobPhase phase) {
  switch (phase) {
    case PHASE_WAITING:
      return "not begun";
    case PHASE_RUNNING:
      return "running";
    case PHASE_DRAINING:
      return "draining";
    case PHASE_FINISHED:
      return "finished";
    default:
      return "unknown";
  }
}

const char* StateName(MemberState state) {
  switch (state) {
    case MEMBER_ACTIVE:
      return "active";
    case MEMBER_IDLE:
      return "idle";
    case MEMBER_SUSPECT:
      return "suspect";
    case MEMBER_GONE:
      return "gone";
    default:
      return "unknown";
  }
}

std::string SyncName(const JobConfig& job) {
  const std::string name = job.bound() < 0    ? "asp"
                           : job.bound() == 0 ? "bsp"
                                              : absl::StrCat("ssp:", job.bound());
  return job.has_local() ? absl::StrCat(name, " of ", job.local().steps(), " local steps") : name;
}

std::string OptimizerNames(const StatusReply& status) {
  if (!status.job().has_local()) return status.optimizer();
  return absl::StrCat(status.job().local().rules().optimizer(), ", outer ", status.optimizer());
}

bool AnySimulated(const StatusReply& status) {
  for (const MemberStatus& member : status.members()) {
    if (member.simulated()) return true;
  }
  return false;
}

double Fraction(const StatusReply& status) {
  if (status.samples_total() == 0) return 0;
  return static_cast<double>(status.samples_completed()) / static_cast<double>(status.samples_total());
}

std::string SecondsLeft(const StatusReply& status) {
  const double left = static_cast<double>(status.samples_total() - status.samples_completed());
  return HumanSeconds(status.samples_per_second() > 0 ? left / status.samples_per_second() : NAN);
}

std::string Percent(double share) { return absl::StrFormat("%.0f %%", 100 * share); }

// UTIL, MEM and POWER of a worker's device; "-" is what nobody knows.
std::vector<std::string> DeviceCells(const DeviceStatus& device) {
  return {device.has_utilization() ? Percent(device.utilization()) : "-",
          device.has_memory_used_bytes() ? absl::StrCat(HumanBytes(device.memory_used_bytes()), " of ",
                                                        HumanBytes(device.memory_total_bytes()))
                                         : "-",
          device.has_power_watts() ? absl::StrFormat("%.0f W", device.power_watts()) : "-"};
}

// What the table has no column for: lines below it.
void PrintRemarks(const MemberStatus& member) {
  const WorkerProgress& progress = member.progress();
  const auto line = [&](const std::string& text) { std::cout << member.name() << ": " << text << "\n"; };
  if (progress.saturated_values() > 0 || progress.underflown_values() > 0) {
    line(absl::StrFormat("of its gradients' values %d were cut and %d became 0 in the codec",
                         progress.saturated_values(), progress.underflown_values()));
  }
  if (progress.residual_norm() > 0) {
    line(absl::StrFormat("keeps back gradients of norm %.3g, sent whole %.0f s ago", progress.residual_norm(),
                         progress.residual_age_seconds()));
  }
  if (progress.device_status().throttled()) {
    line(absl::StrCat("its device is throttled: ", ShownName(progress.device_status().throttled_why())));
  }
  if (!member.lease_share_why().empty()) {
    line(absl::StrCat("gets ", Percent(member.lease_share()), " of a lease: ", member.lease_share_why()));
  }
  if (!progress.precision().empty() && progress.precision() != "fp32") {
    const std::string scale = absl::StrFormat(", loss scale %.0f, %d batches skipped", progress.loss_scale(),
                                              progress.skipped_batches());
    line(absl::StrCat("computes in ", ShownName(progress.precision()),
                      progress.loss_scale() > 0 ? scale : ""));
  }
  const uint32_t pieces = progress.micro_batch_samples();
  if (progress.batch_samples() > 0) {
    line(absl::StrCat("batches of ", progress.batch_samples(), " samples",
                      pieces > 0 ? absl::StrCat(", computed ", pieces, " at a time") : ""));
  }
}

void PrintMembers(const StatusReply& status) {
  std::vector<std::vector<std::string>> rows = {
      {"WORKER", "STATE", "STEP", "PUSHES", "STALENESS", "SAMPLES/S", "STEP TIME", "WAITS %", "SAMPLES",
       "SPLITS", "LOSS", "DEVICE", "UTIL", "MEM", "POWER", "CODEC", "RECONSTRUCTED", "HEARD"}};
  if (status.job().has_local()) rows[0].push_back("LOCAL STEPS");
  for (const MemberStatus& member : status.members()) {
    const WorkerProgress& progress = member.progress();
    const bool gone = member.state() == MEMBER_GONE;
    const std::vector<std::string> device = DeviceCells(gone ? DeviceStatus() : progress.device_status());
    rows.push_back(
        {member.name(), StateName(member.state()), absl::StrCat(member.next_step()),
         absl::StrCat(member.pushes()),
         absl::StrFormat("%.1f (max %d)", member.staleness_mean(), member.staleness_max()),
         gone ? "-"
              : absl::StrCat(HumanCount(progress.samples_per_second()),
                             member.simulated() ? " simulated" : ""),
         progress.batch_seconds() > 0 ? absl::StrFormat("%.3f s", progress.batch_seconds()) : "-",
         gone ? "-" : absl::StrFormat("%.0f", 100 * member.waits_share()),
         HumanCount(static_cast<double>(member.samples_completed())), absl::StrCat(member.splits()),
         absl::StrFormat("%.4f", progress.last_loss()), member.device(), device[0], device[1], device[2],
         progress.codec().empty() ? member.codec() : progress.codec(),
         progress.reconstruct_ms() > 0 ? absl::StrFormat("%.0f ms", progress.reconstruct_ms()) : "-",
         absl::StrFormat("%.1f s ago", member.heartbeat_age_ms() / 1000)});
    if (status.job().has_local()) rows.back().push_back(absl::StrCat(member.local_steps()));
  }
  std::cout << Table(rows);
  for (const MemberStatus& member : status.members()) {
    if (member.state() != MEMBER_GONE) PrintRemarks(member);
  }
}

const char* StateName(ServerState state) {
  switch (state) {
    case SERVER_READY:
      return "ready";
    case SERVER_RECOVERING:
      return "restoring";
    case SERVER_STOPPED:
      return "stopped";
    default:
      return "away";
  }
}

void PrintServers(const StatusReply& status) {
  if (status.servers_size() == 0) return;
  std::vector<std::vector<std::string>> rows = {
      {"SERVER", "STATE", "ADDRESS", "PARAMETERS", "SHARDS", "PUSHES", "RECOVERED", "HEARD"}};
  for (const ServerStatus& server : status.servers()) {
    rows.push_back({absl::StrCat(server.server()), StateName(server.state()),
                    server.address().empty() ? "-" : server.address(),
                    HumanCount(static_cast<double>(server.parameters())), absl::StrCat(server.shards()),
                    HumanCount(static_cast<double>(server.pushes())),
                    server.recover_ms() > 0 ? absl::StrFormat("%.0f ms", server.recover_ms()) : "-",
                    absl::StrFormat("%.1f s ago", server.heard_ms() / 1000)});
  }
  std::cout << Table(rows) << "\n";
}

// What went wrong with the state, and what was done.
void PrintWayBack(const StatusReply& status) {
  const SnapshotStatus& snapshot = status.snapshot();
  if (snapshot.non_finite_values() > 0) {
    std::cout << "NOT FINITE " << snapshot.non_finite_values() << " values of snapshot "
              << snapshot.generation();
    if (snapshot.last_finite_generation() > 0)
      std::cout << "; the last without any is " << snapshot.last_finite_generation();
    std::cout << "\n";
  }
  if (!status.divergence().empty()) std::cout << "DIVERGES   " << status.divergence() << "\n";
  if (!status.mixed_state().empty()) std::cout << "MIXED      " << status.mixed_state() << "\n";
  const RollbackRecord& rollback = status.rollback();
  if (rollback.history() == 0) return;
  std::cout << "rollback   " << rollback.reason() << " at " << HumanTime(rollback.unix_ms()) << ", snapshot "
            << rollback.published() << "; " << rollback.history() << " in this job, "
            << rollback.automatic_count() << " of them by --on-divergence\n";
}

void PrintStatus(const StatusReply& status) {
  const SnapshotStatus& snapshot = status.snapshot();
  std::cout << "job        " << (status.model().empty() ? "no model yet" : status.model()) << ", "
            << HumanCount(static_cast<double>(status.parameters())) << " parameters in " << status.shards()
            << " shards, " << PhaseName(status.phase()) << "\n"
            << "training   " << SyncName(status.job()) << ", " << OptimizerNames(status) << ", batch "
            << status.job().batch_samples() << ", " << HumanCount(static_cast<double>(status.updates()))
            << " updates; since this server started " << HumanCount(static_cast<double>(status.pushes()))
            << " pushes (" << status.duplicate_pushes() << " duplicate parts dropped)\n"
            << "progress   " << Bar(Fraction(status), 30)
            << absl::StrFormat(" %.2f of %d data epochs, ", status.data_epochs_completed(),
                               status.job().data_epochs())
            << HumanCount(static_cast<double>(status.samples_completed())) << " samples, "
            << HumanCount(status.samples_per_second()) << " samples/s"
            << (AnySimulated(status) ? " (simulated computing)" : "") << ", " << SecondsLeft(status)
            << " left\n"
            << "snapshot   ";
  if (snapshot.generation() == 0) {
    std::cout << "none yet";
  } else {
    std::cout << snapshot.generation() << " of " << HumanTime(snapshot.unix_ms()) << ", "
              << HumanBytes(snapshot.stored_bytes()) << " of " << HumanBytes(snapshot.raw_bytes())
              << ", root " << snapshot.state_root();
  }
  if (snapshot.failed() > 0)
    std::cout << "; " << snapshot.failed() << " failed, last: " << snapshot.last_error();
  std::cout << "\nserver     cluster epoch " << status.cluster_epoch() << ", up "
            << HumanSeconds(status.uptime_seconds());
  if (status.restored_generation() > 0)
    std::cout << ", restored from snapshot " << status.restored_generation();
  if (status.first_push_ms() > 0)
    std::cout << absl::StrFormat(", first push after %.0f ms", status.first_push_ms());
  std::cout << "\n";
  PrintWayBack(status);
  if (status.evaluations_size() > 0) {
    const EvalEntry& last = status.evaluations(status.evaluations_size() - 1);
    std::cout << absl::StrFormat("accuracy   %.4f, loss %.4f after data epoch %d\n", last.accuracy(),
                                 last.loss(), last.data_epochs());
  }
  if (!status.policy_reason().empty()) {
    std::cout << "sync auto  " << SyncName(status.job()) << ": " << status.policy_reason() << "\n";
  }
  if (status.standing_seconds() > 0) {
    std::cout << "STANDS     for "
              << absl::FormatDuration(absl::Seconds(static_cast<int64_t>(status.standing_seconds()))) << ": "
              << status.waits_for() << "\n";
  }
  if (status.not_begun_seconds() > 0) {
    std::cout << "not begun  for "
              << absl::FormatDuration(absl::Seconds(static_cast<int64_t>(status.not_begun_seconds()))) << ": "
              << status.waits_for() << "\n";
  }
  if (status.log_budget_bytes() > 0) {
    std::cout << "push log   " << HumanBytes(status.log_bytes()) << " of "
              << HumanBytes(status.log_budget_bytes()) << "\n";
  }
  if (!status.holds_up().empty()) {
    std::cout << "waiting    " << SyncName(status.job()) << ": " << status.holds_up() << "\n";
  }
  if (status.has_codec_choice()) {
    std::cout << "codec auto " << status.codec_choice().push() << ", parameters in "
              << status.codec_choice().pull() << ": " << status.codec_reason()
              << (status.codec_settled() ? "" : " (still trying)") << "\n";
  }
  std::cout << "\n";
  PrintServers(status);
  PrintMembers(status);
}

std::string ProgressLine(const StatusReply& status) {
  int alive = 0;
  for (const MemberStatus& member : status.members()) alive += member.state() == MEMBER_GONE ? 0 : 1;
  std::string line = absl::StrCat(
      Bar(Fraction(status), 30),
      absl::StrFormat(" epoch %.2f/%d  ", status.data_epochs_completed(), status.job().data_epochs()),
      HumanCount(status.samples_per_second()), " samples/s", AnySimulated(status) ? " (simulated)" : "", "  ",
      alive, " workers  snapshot ", status.snapshot().generation(), "  ", SecondsLeft(status), " left");
  if (status.evaluations_size() > 0) {
    const EvalEntry& last = status.evaluations(status.evaluations_size() - 1);
    absl::StrAppend(&line, absl::StrFormat("  accuracy %.4f", last.accuracy()));
  }
  return line;
}

}  // namespace

absl::Status Explained(const ServerTarget& target, const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return status;
  const absl::Status cause = ProbeTls(target.address, target.tls);
  return cause.ok() ? status : cause;
}

absl::Status ShowStatus(const ServerTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto client, Connect(target));
  RECON_ASSIGN_OR_RETURN(StatusReply status, client->Status());
  if (target.json) {
    std::cout << ToJson(status) << "\n";
  } else {
    EscapeTexts(&status);
    PrintStatus(status);
  }
  return absl::OkStatus();
}

absl::Status FollowStatus(const ServerTarget& target, double patience_seconds) {
  RECON_ASSIGN_OR_RETURN(const auto client, Connect(target));
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  const absl::Duration interval = terminal ? absl::Milliseconds(500) : absl::Seconds(5);
  absl::Time heard = Now();
  absl::Status cause;
  while (true) {
    const absl::StatusOr<StatusReply> status = client->Status();
    const absl::Time now = Now();
    if (status.ok()) heard = now;
    const absl::Status before = std::exchange(cause, Explained(target, status.status()));
    if (absl::IsInvalidArgument(cause) && cause == before) return cause;  // It will not pass.
    if (!status.ok() && now - heard > absl::Seconds(patience_seconds)) {
      if (terminal) std::cout << std::endl;
      return status.status();
    }
    std::string line;
    if (!status.ok()) {
      line = "the server does not answer, trying again";
    } else {
      line = target.json ? ToJson(*status) : ProgressLine(*status);
    }
    if (terminal && !target.json) {
      std::cout << "\r\033[K" << line << std::flush;
    } else if (status.ok() || !target.json) {
      std::cout << line << std::endl;
    }
    if (status.ok() && status->phase() == PHASE_FINISHED) {
      if (terminal) std::cout << std::endl;
      return absl::OkStatus();
    }
    Sleep(interval);
  }
}

absl::Status ShowCompletions(const ServerTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto client, Connect(target));
  RECON_ASSIGN_OR_RETURN(CompletionsReply reply, client->Completions());
  for (Completion& completion : *reply.mutable_completions()) {
    completion.set_data_epoch(ShownDataEpoch(completion.data_epoch(), completion.kind() == LEASE_TRAIN));
  }
  if (target.json) {
    std::cout << ToJson(reply) << "\n";
    return absl::OkStatus();
  }
  std::vector<std::vector<std::string>> rows = {{"KIND", "DATA EPOCH", "SPLIT", "SAMPLES", "WORKER", "WHEN"}};
  for (const Completion& completion : reply.completions()) {
    rows.push_back({completion.kind() == LEASE_EVAL ? "evaluation" : "training",
                    absl::StrCat(completion.data_epoch()), absl::StrCat(completion.split()),
                    absl::StrCat(completion.begin(), "-", completion.end()), completion.worker(),
                    HumanTime(completion.unix_ms())});
  }
  std::cout << Table(rows);
  return absl::OkStatus();
}

absl::Status SetPolicy(const ServerTarget& target, const PolicySettings& settings) {
  RECON_ASSIGN_OR_RETURN(const auto client, Connect(target));
  RECON_ASSIGN_OR_RETURN(const SetPolicyReply reply, client->SetPolicy(settings));
  if (target.json) {
    std::cout << ToJson(reply) << "\n";
  } else {
    std::cout << "policy " << SyncName(reply.job()) << ", cluster epoch " << reply.cluster_epoch() << "\n";
  }
  return absl::OkStatus();
}

absl::Status TakeSnapshot(const ServerTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto client, Connect(target));
  RECON_ASSIGN_OR_RETURN(SnapshotReply reply, client->Snapshot());
  if (target.json) {
    std::cout << ToJson(reply) << "\n";
  } else {
    EscapeTexts(&reply);
    std::cout << "snapshot " << reply.generation() << ": " << HumanBytes(reply.stored_bytes())
              << absl::StrFormat(" in %.2f s, root ", reply.seconds()) << reply.state_root() << "\n";
  }
  return absl::OkStatus();
}

}  // namespace recon
