#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/rpc/credentials.h"
#include "worker/comm/reconstruct.h"
#include "worker/data/dataset.h"
#include "worker/encode/codec_policy.h"
#include "worker/model/loss_scaler.h"
#include "worker/model/model_backend.h"
#include "worker/process/batch_plan.h"
#include "worker/training/member.h"

namespace recon {

// What recon-worker was told, checked. Sources as for the server: flags, --config, RECON_<FLAG>.
struct WorkerFlags {
  std::string server = LoopbackAddress(kDefaultPort);
  std::string name;  // Empty: one is drawn, <host>-<random>.
  std::string data = kDefaultDataset;
  ModelOptions model;
  std::vector<std::pair<std::string, std::string>> tensor_groups;  // As AssignGroups() takes them.
  CodecPolicy::Options codec;
  EncoderOptions encoder;
  int depth = 2;
  int connections = limits::kDataConnections;
  bool shared_memory = true;  // Where the server offers it.
  bool ucx = false;           // Frames go over UCX only.
  ParameterSource parameters_from = ParameterSource::kServer;
  std::string serve_parameters;  // host:port; empty: it does not.
  uint32_t accumulate = 1;
  BatchFlags batch;
  float loss_scale = LossScaler::kStart;  // That fp16 begins with.
  double slow_factor = 1;
  absl::Duration step_time;  // Simulated.
  absl::Duration reconnect_for;
  std::string metrics_address;
  TlsFlags tls;
  std::string log_level = "info";
};

absl::StatusOr<WorkerFlags> ParseWorkerFlags(int argc, char** argv, int* exit_code);

// The same for a program that has the worker as a library: flags by name, without dashes, and what the
// environment says. InvalidArgument with the flag's name.
absl::StatusOr<WorkerFlags> WorkerFlagsOf(const std::vector<std::pair<std::string, std::string>>& values);

// What of it says how the worker takes part in the job; model and data are not of it.
Member::Options MemberOptionsOf(const WorkerFlags& flags);

}  // namespace recon
