#include "worker/process/worker_flags.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/metrics/metrics.h"
#include "common/ucx/ucx_transport.h"

namespace recon {
namespace {

// Flags about computing, which a program that has the worker as a library does itself.
constexpr absl::string_view kOfReconWorker[] = {"precision", "loss-scale", "batch",
                                                "batch-min", "batch-max",  "micro-batch"};

struct RawFlags {
  std::string codec = "fp16";
  std::string pull_codec = "auto";
  std::string error_feedback = "on";
  std::string topk = "exact";
  std::string residual = "fp32";
  std::string residual_flush = "60s";
  std::string transport = "auto";
  std::string parameters_from = "server";
  std::string precision = "fp32";
  std::string batch = "job";
  std::string micro_batch = "off";
  double step_ms = 0;
  std::string reconnect_for = "10m";
  std::vector<std::string> tensor_groups;
};

void DefineFlags(CommandLine* line, WorkerFlags* flags, RawFlags* raw) {
  CLI::App* const app = line->app();
  const auto env = [](CLI::Option* option, const char* name) { return option->envname(name); };
  line->AddConfigFile();
  line->BeginGroup("Place in the job");
  env(app->add_option("--server", flags->server, "HOST:PORT of recon-server"), "RECON_SERVER");
  env(app->add_option("--name", flags->name,
                      "unique in the job; a new process of the same name replaces its holder, dead or alive; "
                      "default <host>-<random>"),
      "RECON_NAME");
  line->BeginGroup("Model, data and device");
  env(app->add_option("--model", flags->model.model,
                      "mlp:784-512-256-10, or with simulated computing resnet50, vgg16, bert-base or "
                      "synthetic:SHAPES_FILE (synthetic:resnet50 is resnet50)"),
      "RECON_MODEL");
  env(app->add_option("--data", flags->data,
                      "idx:DIR, cifar10:DIR or clusters:TRAIN,TEST[,FEATURES,CLASSES]"),
      "RECON_DATASET");
  env(app->add_option(
          "--tensor-group", raw->tensor_groups,
          "PATTERN=GROUP: tensors whose names match are of that group, for the policies and codecs "
          "of groups; the first that matches counts; the same for all workers of a job"),
      "RECON_TENSOR_GROUP");
  env(app->add_option("--device", flags->model.device, "auto, cpu or cuda:N"), "RECON_DEVICE");
  env(app->add_option("--threads", flags->model.threads, "CPU threads of matrix products")
          ->check(CLI::Range(1, 1024)),
      "RECON_THREADS");
  env(app->add_option(
          "--precision", raw->precision,
          "of computing: fp32, bf16, or fp16 with dynamic loss scaling; the server's parameters are "
          "fp32 in any case. A CPU rounds to it after each layer, and gets no faster"),
      "RECON_PRECISION");
  env(app->add_option(
          "--loss-scale", flags->loss_scale,
          "that --precision fp16 begins with, a power of two; half after values that are too large, "
          "twice after 2,000 batches without"),
      "RECON_LOSS_SCALE");
  line->BeginGroup("Batches");
  // Not RECON_BATCH, which is the server's.
  env(app->add_option(
          "--batch", raw->batch,
          "job: of the server's --batch; or auto, with asp and ssp: as large as memory and speed of "
          "the device suggest, each one push at the same learning rate"),
      "RECON_WORKER_BATCH");
  env(app->add_option("--batch-min", flags->batch.min, "samples, with --batch auto")
          ->check(CLI::Range(1, 1'000'000'000)),
      "RECON_BATCH_MIN");
  env(app->add_option("--batch-max", flags->batch.max, "samples, with --batch auto; 0: those of a split")
          ->check(CLI::Range(0, 1'000'000'000)),
      "RECON_BATCH_MAX");
  env(app->add_option(
          "--micro-batch", raw->micro_batch,
          "samples that are computed at a time: a batch's gradient is the sum of its pieces'; auto: "
          "as many as memory and speed of the device suggest; off: the whole batch"),
      "RECON_MICRO_BATCH");
  line->BeginGroup("Gradients and parameters on the wire");
  env(app->add_option("--codec", raw->codec,
                      "of gradients: auto, fp32, fp16, bf16, int8, topk:RATIO, randomk:RATIO or "
                      "threshold:MAGNITUDE; then ,GROUP=CODEC for groups that match a pattern"),
      "RECON_CODEC");
  env(app->add_option("--pull-codec", raw->pull_codec,
                      "of parameters: fp32, fp16, bf16, or auto: as --codec auto chooses, else fp32"),
      "RECON_PULL_CODEC");
  env(app->add_option("--error-feedback", raw->error_feedback,
                      "on: what int8 and sparse codecs leave out is added to the next gradient")
          ->check(CLI::IsMember({"on", "off"})),
      "RECON_ERROR_FEEDBACK");
  env(app->add_option("--topk", raw->topk, "exact, or sampled: the threshold is that of a sample")
          ->check(CLI::IsMember({"exact", "sampled"})),
      "RECON_TOPK");
  env(app->add_option("--sparsity-warmup", flags->codec.warmup_data_epochs,
                      "data epochs over which topk and randomk fall from a ratio of 0.25 to theirs")
          ->check(CLI::Range(0.0, 1e6)),
      "RECON_SPARSITY_WARMUP");
  env(app->add_option("--momentum-correction", flags->encoder.momentum,
                      "momentum the worker applies before it selects (deep gradient compression); use it "
                      "with --optimizer sgd on the server")
          ->check(CLI::Range(0.0, 0.9999)),
      "RECON_MOMENTUM_CORRECTION");
  env(app->add_option("--residual", raw->residual, "fp32, or bf16: half the memory for what is left out")
          ->check(CLI::IsMember({"fp32", "bf16"})),
      "RECON_RESIDUAL");
  env(app->add_option("--residual-flush", raw->residual_flush,
                      "what is left out is sent whole once in so long; a killed worker loses no more"),
      "RECON_RESIDUAL_FLUSH");
  line->BeginGroup("Pushes and ways of frames");
  env(app->add_option("--depth", flags->depth,
                      "pushes under way while computing; bsp uses 1, ssp:S at most S+1")
          ->check(CLI::Range(1, limits::kPipelineDepthMax)),
      "RECON_DEPTH");
  env(app->add_option(
             "--accumulate", flags->accumulate,
             "batches whose gradients, their mean, make one push: larger batches than the device holds, or "
             "fewer bytes; without local steps")
          ->check(CLI::Range(1, 1'000'000)),
      "RECON_ACCUMULATE");
  env(app->add_option(
             "--connections", flags->connections,
             "to each server at most, for gradients and parameters; with TLS more of them carry more")
          ->check(CLI::Range(1, limits::kDataConnectionsMax)),
      "RECON_CONNECTIONS");
  env(app->add_option("--transport", raw->transport,
                      "auto (shared memory where the server is on this machine and offers it), grpc, or ucx "
                      "(InfiniBand, RoCE; where the server has --ucx-listen)")
          ->check(CLI::IsMember({"auto", "grpc", "ucx"})),
      "RECON_TRANSPORT");
  line->BeginGroup("Simulation");
  env(app->add_option("--step-ms", raw->step_ms, "simulated computing time: each step takes at least so long")
          ->check(CLI::Range(0.0, 3.6e6)),
      "RECON_STEP_MS");
  line->BeginGroup("Parameters of a worker that joins");
  env(app->add_option(
             "--parameters-from", raw->parameters_from,
             "where a worker that joins takes them: server, store (the newest snapshot, read where the "
             "server writes it), or workers (those with --serve-parameters); what of it is not the server's "
             "comes from the server")
          ->check(CLI::IsMember({"server", "store", "workers"}))
          ->capture_default_str(),
      "RECON_PARAMETERS_FROM");
  env(app->add_option("--serve-parameters", flags->serve_parameters,
                      "HOST:PORT where this worker hands its parameters to workers that join, HOST as they "
                      "reach it; off by default"),
      "RECON_SERVE_PARAMETERS");
  env(app->add_option("--slow-factor", flags->slow_factor,
                      "simulated slowness: each step takes so many times its computing time, or --step-ms")
          ->check(CLI::Range(1.0, 1e4)),
      "RECON_SLOW_FACTOR")
      ->group("Simulation");
  line->BeginGroup("Process");
  env(app->add_option("--reconnect-for", raw->reconnect_for,
                      "keep trying so long when the server cannot be reached"),
      "RECON_RECONNECT_FOR");
  env(app->add_option("--metrics-address", flags->metrics_address,
                      "HOST:PORT for Prometheus, or PORT on loopback; off by default"),
      "RECON_WORKER_METRICS_ADDRESS");
  line->BeginGroup("Security");
  env(app->add_option("--tls-cert", flags->tls.cert, "PEM certificate of this worker"), "RECON_TLS_CERT");
  env(app->add_option("--tls-key", flags->tls.key, "PEM key of the certificate"), "RECON_TLS_KEY");
  env(app->add_option("--tls-ca", flags->tls.ca, "PEM certificate of the CA that the server must have"),
      "RECON_TLS_CA");
  env(app->add_flag("--insecure", flags->tls.insecure, "plain text to an address other than loopback"),
      "RECON_INSECURE");
  env(app->add_option("--token-file", flags->tls.token_file,
                      "file with the token that the head wants (its --tokens)"),
      "RECON_TOKEN_FILE");
  line->BeginGroup("Process");
  env(app->add_option("--log-level", flags->log_level, "debug, info, warn or error")
          ->check(CLI::IsMember({"debug", "info", "warn", "error"})),
      "RECON_LOG_LEVEL");
  for (CLI::Option* option : app->get_options()) {
    if (option->get_group() != "General") option->capture_default_str();
  }
}

absl::Status Prefixed(const char* flag, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", status.message()));
}

absl::Status ConvertBatch(const RawFlags& raw, uint32_t accumulate, BatchFlags* batch) {
  if (raw.batch != "job" && raw.batch != "auto") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch ", raw.batch,
        ": expected job or auto; how many samples a job's batches have says the server's --batch"));
  }
  batch->follows_device = raw.batch == "auto";
  if (!batch->follows_device && (batch->min != 1 || batch->max != 0)) {
    return absl::InvalidArgumentError("--batch-min and --batch-max need --batch auto");
  }
  if (batch->max != 0 && batch->min > batch->max) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch-min ", batch->min, " is more than --batch-max ", batch->max));
  }
  if (batch->follows_device && accumulate > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch auto says itself how many samples a push has: not with "
                     "--accumulate ",
                     accumulate));
  }
  batch->pieces_follow_device = raw.micro_batch == "auto";
  if (raw.micro_batch == "auto" || raw.micro_batch == "off") return absl::OkStatus();
  if (!absl::SimpleAtoi(raw.micro_batch, &batch->piece_samples) || batch->piece_samples == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--micro-batch ", raw.micro_batch, ": expected a number of samples, auto or off"));
  }
  return absl::OkStatus();
}

absl::Status Convert(const RawFlags& raw, WorkerFlags* flags) {
  RECON_ASSIGN_OR_RETURN(flags->model.precision, ParsePrecision(raw.precision));
  int exponent = 0;
  if (!(flags->loss_scale >= LossScaler::kMin && flags->loss_scale <= LossScaler::kMax) ||
      std::frexp(flags->loss_scale, &exponent) != 0.5f) {
    return absl::InvalidArgumentError(
        absl::StrCat("--loss-scale ", flags->loss_scale, ": expected a power of two, 1 to 16777216"));
  }
  if (flags->loss_scale != LossScaler::kStart && flags->model.precision != Precision::kFp16) {
    return absl::InvalidArgumentError("--loss-scale needs --precision fp16");
  }
  RECON_RETURN_IF_ERROR(ConvertBatch(raw, flags->accumulate, &flags->batch));
  RECON_RETURN_IF_ERROR(CheckAddress("--server", flags->server));
  if (!flags->metrics_address.empty()) {
    RECON_ASSIGN_OR_RETURN(flags->metrics_address,
                           MetricsAddress("--metrics-address", flags->metrics_address,
                                          !flags->tls.cert.empty() || flags->tls.insecure));
  }
  absl::StatusOr<CodecRules> rules = CodecRules::Parse(raw.codec);
  if (!rules.ok()) return Prefixed("--codec", rules.status());
  flags->codec.rules = *std::move(rules);
  flags->codec.pull_auto = raw.pull_codec == "auto";
  if (!flags->codec.pull_auto) {
    const absl::StatusOr<CodecId> pull_codec = ParseValueCodec(raw.pull_codec);
    if (!pull_codec.ok()) return Prefixed("--pull-codec", pull_codec.status());
    flags->codec.pull_codec = *pull_codec;
  }
  flags->encoder.feedback = raw.error_feedback == "on";
  flags->encoder.sampled = raw.topk == "sampled";
  flags->encoder.bf16_residual = raw.residual == "bf16";
  if (flags->encoder.momentum > 0 && !flags->encoder.feedback) {
    return absl::InvalidArgumentError("--momentum-correction needs --error-feedback on");
  }
  if (!absl::ParseDuration(raw.residual_flush, &flags->codec.flush_period) ||
      flags->codec.flush_period <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--residual-flush ", raw.residual_flush, ": expected a duration such as 60s"));
  }
  if (!absl::ParseDuration(raw.reconnect_for, &flags->reconnect_for) ||
      flags->reconnect_for < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--reconnect-for ", raw.reconnect_for, ": expected a duration such as 10m"));
  }
  for (const std::string& rule : raw.tensor_groups) {
    const std::pair<std::string, std::string> halves = absl::StrSplit(rule, absl::MaxSplits('=', 1));
    if (halves.first.empty() || halves.second.empty() || halves.second.size() > limits::kNameBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tensor-group ", rule, ": expected PATTERN=GROUP, such as layer0.*=first"));
    }
    flags->tensor_groups.push_back(halves);
  }
  flags->step_time = absl::Milliseconds(raw.step_ms);
  flags->shared_memory = raw.transport == "auto";
  flags->ucx = raw.transport == "ucx";
  if (flags->ucx && !HaveUcx()) {
    return absl::InvalidArgumentError("--transport ucx: this program has been built without UCX");
  }
  if (flags->ucx && !flags->tls.insecure) {
    return absl::InvalidArgumentError(
        "--transport ucx: UCX is plain text and lets everybody in: give --insecure");
  }
  if (flags->ucx && !flags->tls.cert.empty()) {
    return absl::InvalidArgumentError(
        "--transport ucx: UCX neither encrypts nor checks who connects: not with TLS");
  }
  if (raw.parameters_from == "store") flags->parameters_from = ParameterSource::kStore;
  if (raw.parameters_from == "workers") flags->parameters_from = ParameterSource::kWorkers;
  if (!flags->serve_parameters.empty()) {
    RECON_RETURN_IF_ERROR(CheckAddress("--serve-parameters", flags->serve_parameters));
    if (IsWildcard(flags->serve_parameters)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--serve-parameters ", flags->serve_parameters,
                       ": name the address at which other workers reach this one"));
    }
  }
  if (flags->name.size() > limits::kNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--name has ", flags->name.size(), " bytes, allowed are ", limits::kNameBytesMax));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkerFlags> ParseWorkerFlags(int argc, char** argv, int* exit_code) {
  WorkerFlags flags;
  flags.model.model = "mlp:784-512-256-10";
  flags.model.device = "auto";
  RawFlags raw;
  CommandLine line("recon-worker", "leases data, computes gradients, pushes and pulls");
  DefineFlags(&line, &flags, &raw);
  if (const std::optional<int> code = line.Parse(argc, argv)) {
    *exit_code = *code;
    return absl::InvalidArgumentError("no flags");
  }
  const absl::Status converted = Convert(raw, &flags);
  if (!converted.ok()) {
    *exit_code = line.Refuse(converted);
    return converted;
  }
  return flags;
}

absl::StatusOr<WorkerFlags> WorkerFlagsOf(const std::vector<std::pair<std::string, std::string>>& values) {
  WorkerFlags flags;
  RawFlags raw;
  flags.log_level = "warn";
  CommandLine line("recon", "a worker as a library");
  DefineFlags(&line, &flags, &raw);
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
  RECON_RETURN_IF_ERROR(Convert(raw, &flags));
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
