#include "worker/runtime/worker_flags.h"

#include <unistd.h>

#include <iostream>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"

namespace recon {
namespace {

struct RawFlags {
  std::string codec = "fp16";
  std::string pull_codec = "fp32";
  std::string reconnect_for = "10m";
};

void DefineFlags(CLI::App* app, WorkerFlags* flags, RawFlags* raw) {
  const auto env = [](CLI::Option* option, const char* name) { return option->envname(name); };
  app->set_config("--config", "", "TOML file with the same names as the flags");
  env(app->add_option("--server", flags->server, "HOST:PORT of recon-server"), "RECON_SERVER");
  env(app->add_option("--name", flags->name,
                      "unique in the job; a new process with the name of a dead one replaces it; default "
                      "<host>-<process>"),
      "RECON_NAME");
  env(app->add_option(
          "--model", flags->model.model,
          "mlp:784-512-256-10 or synthetic:resnet50|vgg16|bert-base|SHAPES_FILE (simulated computing)"),
      "RECON_MODEL");
  env(app->add_option("--data", flags->data,
                      "idx:DIR, cifar10:DIR or clusters:TRAIN,TEST[,FEATURES,CLASSES]"),
      "RECON_DATASET");
  env(app->add_option("--device", flags->model.device, "auto, cpu or cuda:N"), "RECON_DEVICE");
  env(app->add_option("--threads", flags->model.threads, "CPU threads of matrix products")
          ->check(CLI::Range(1, 1024)),
      "RECON_THREADS");
  env(app->add_option("--codec", raw->codec, "of gradients: fp32, fp16 or bf16"), "RECON_CODEC");
  env(app->add_option("--pull-codec", raw->pull_codec, "of parameters: fp32, fp16 or bf16"),
      "RECON_PULL_CODEC");
  env(app->add_option("--depth", flags->depth,
                      "pushes under way while computing; bsp uses 1, ssp:S at most S+1")
          ->check(CLI::Range(1, limits::kPipelineDepthMax)),
      "RECON_DEPTH");
  env(app->add_option("--synthetic-step-ms", flags->model.synthetic_step_ms,
                      "simulated computing time of a synthetic step")
          ->check(CLI::Range(0.0, 3.6e6)),
      "RECON_SYNTHETIC_STEP_MS");
  env(app->add_option("--slow-factor", flags->slow_factor,
                      "simulated slowness: each step takes so many times its computing time")
          ->check(CLI::Range(1.0, 1e4)),
      "RECON_SLOW_FACTOR");
  env(app->add_option("--reconnect-for", raw->reconnect_for,
                      "keep trying so long when the server cannot be reached"),
      "RECON_RECONNECT_FOR");
  env(app->add_option("--metrics-address", flags->metrics_address,
                      "HOST:PORT for Prometheus; off by default"),
      "RECON_WORKER_METRICS_ADDRESS");
  env(app->add_option("--tls-cert", flags->tls.cert, "PEM certificate of this worker"), "RECON_TLS_CERT");
  env(app->add_option("--tls-key", flags->tls.key, "PEM key of the certificate"), "RECON_TLS_KEY");
  env(app->add_option("--tls-ca", flags->tls.ca, "PEM certificate of the CA that the server must have"),
      "RECON_TLS_CA");
  env(app->add_flag("--insecure", flags->tls.insecure, "plain text to an address other than loopback"),
      "RECON_INSECURE");
  env(app->add_option("--log-level", flags->log_level, "debug, info, warn or error")
          ->check(CLI::IsMember({"debug", "info", "warn", "error"})),
      "RECON_LOG_LEVEL");
  for (CLI::Option* option : app->get_options()) {
    if (option->get_name() != "--help" && option->get_name() != "--config") option->capture_default_str();
  }
}

absl::Status Convert(const RawFlags& raw, WorkerFlags* flags) {
  RECON_RETURN_IF_ERROR(CheckAddress("--server", flags->server));
  RECON_ASSIGN_OR_RETURN(flags->codec, ParseCodec(raw.codec));
  RECON_ASSIGN_OR_RETURN(flags->pull_codec, ParseCodec(raw.pull_codec));
  if (!absl::ParseDuration(raw.reconnect_for, &flags->reconnect_for) ||
      flags->reconnect_for < absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--reconnect-for ", raw.reconnect_for, ": expected a duration such as 10m"));
  }
  if (flags->name.size() > limits::kNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--name has ", flags->name.size(), " bytes, allowed are ", limits::kNameBytesMax));
  }
  if (flags->name.empty()) {
    char host[128] = "worker";
    gethostname(host, sizeof(host) - 1);
    flags->name = absl::StrCat(host, "-", getpid());
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WorkerFlags> ParseWorkerFlags(int argc, char** argv, int* exit_code) {
  WorkerFlags flags;
  flags.model.model = "mlp:784-512-256-10";
  flags.model.device = "auto";
  RawFlags raw;
  CLI::App app{"recon-worker: leases data, computes gradients, pushes and pulls"};
  app.allow_config_extras(CLI::config_extras_mode::error);
  DefineFlags(&app, &flags, &raw);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    *exit_code = app.exit(error) == 0 ? 0 : 2;
    return absl::InvalidArgumentError(error.what());
  }
  const absl::Status converted = Convert(raw, &flags);
  if (!converted.ok()) {
    std::cerr << "recon-worker: " << converted.message() << "\n";
    *exit_code = 2;
    return converted;
  }
  return flags;
}

}  // namespace recon
