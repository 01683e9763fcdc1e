#include "worker/process/worker_flags.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/metrics/metrics.h"
#include "worker/process/worker_flag_table.h"

namespace recon {
namespace {

// Flags about computing, which a program that has the worker as a library does itself.
constexpr absl::string_view kOfReconWorker[] = {"precision", "loss-scale", "batch",
                                                "batch-min", "batch-max",  "micro-batch"};

absl::Status CheckBatches(const BatchFlags& batch, uint32_t accumulate) {
  if (!batch.follows_device && (batch.min != 1 || batch.max != 0)) {
    return absl::InvalidArgumentError("--batch-min and --batch-max need --batch auto");
  }
  if (batch.max != 0 && batch.min > batch.max) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch-min ", batch.min, " is more than --batch-max ", batch.max));
  }
  if (batch.follows_device && accumulate > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch auto says itself how many samples a push has: not with "
                     "--accumulate ",
                     accumulate));
  }
  return absl::OkStatus();
}

absl::Status CheckUcx(const TlsFlags& tls) {
  if (!tls.insecure) {
    return absl::InvalidArgumentError(
        "--transport ucx: UCX is plain text and lets everybody in: give --insecure");
  }
  if (!tls.cert.empty()) {
    return absl::InvalidArgumentError(
        "--transport ucx: UCX neither encrypts nor checks who connects: not with TLS");
  }
  return absl::OkStatus();
}

// What flags say together; each alone is right.
absl::Status CheckTogether(WorkerFlags* flags) {
  if (flags->loss_scale != LossScaler::kStart && flags->model.precision != Precision::kFp16) {
    return absl::InvalidArgumentError("--loss-scale needs --precision fp16");
  }
  RECON_RETURN_IF_ERROR(CheckBatches(flags->batch, flags->accumulate));
  if (flags->encoder.momentum > 0 && !flags->encoder.feedback) {
    return absl::InvalidArgumentError("--momentum-correction needs --error-feedback on");
  }
  if (flags->ucx) RECON_RETURN_IF_ERROR(CheckUcx(flags->tls));
  if (flags->metrics_address.empty()) return absl::OkStatus();
  RECON_ASSIGN_OR_RETURN(flags->metrics_address,
                         MetricsAddress("--metrics-address", flags->metrics_address,
                                        !flags->tls.cert.empty() || flags->tls.insecure));
  return absl::OkStatus();
}

// What the command line gave the table's flags.
absl::Status Take(const FlagTable& table, WorkerFlags* flags) {
  RECON_RETURN_IF_ERROR(table.Take());
  return CheckTogether(flags);
}

}  // namespace

absl::StatusOr<WorkerFlags> ParseWorkerFlags(int argc, char** argv, int* exit_code) {
  WorkerFlags flags;
  flags.model.model = "mlp:784-512-256-10";
  flags.model.device = "auto";
  const FlagTable table = WorkerFlagTable(&flags);
  CommandLine line("recon-worker", "leases data, computes gradients, pushes and pulls");
  line.AddConfigFile();
  table.AddTo(line.app());
  if (const std::optional<int> code = line.Parse(argc, argv)) {
    *exit_code = *code;
    return absl::InvalidArgumentError("no flags");
  }
  if (const absl::Status taken = Take(table, &flags); !taken.ok()) {
    *exit_code = line.Refuse(taken);
    return taken;
  }
  return flags;
}

absl::StatusOr<WorkerFlags> WorkerFlagsOf(const std::vector<std::pair<std::string, std::string>>& values) {
  WorkerFlags flags;
  flags.log_level = "warn";
  const FlagTable table = WorkerFlagTable(&flags);
  CommandLine line("recon", "a worker as a library");
  line.AddConfigFile();
  table.AddTo(line.app());
  std::vector<std::string> arguments = {"recon"};
  for (const auto& [name, value] : values) {
    if (std::find(std::begin(kOfReconWorker), std::end(kOfReconWorker), name) != std::end(kOfReconWorker)) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is a setting of recon-worker's own models: a script decides that itself"));
    }
    arguments.push_back(absl::StrCat("--", name, "=", value));
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  RECON_RETURN_IF_ERROR(line.ParseQuietly(static_cast<int>(argv.size()), argv.data()));
  RECON_RETURN_IF_ERROR(Take(table, &flags));
  return flags;
}

Member::Options MemberOptionsOf(const WorkerFlags& flags) {
  Member::Options options;
  options.server = flags.server;
  options.tls = flags.tls;
  options.name = flags.name;
  options.codec = flags.codec;
  options.encoder = flags.encoder;
  options.depth = flags.depth;
  options.accumulate = flags.accumulate;
  options.connections = flags.connections;
  options.shared_memory = flags.shared_memory;
  options.ucx = flags.ucx;
  options.serve_parameters = flags.serve_parameters;
  options.parameters_from = flags.parameters_from;
  options.reconnect_for = flags.reconnect_for;
  options.metrics_address = flags.metrics_address;
  return options;
}

}  // namespace recon
