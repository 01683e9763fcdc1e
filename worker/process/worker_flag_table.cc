#include "worker/process/worker_flag_table.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/plain_text.h"
#include "common/base/status_macros.h"
#include "common/ucx/ucx_transport.h"

namespace recon {
namespace {

using Texts = std::vector<std::string>;

absl::Status CheckServer(const std::string& address) { return CheckAddress("--server", address); }

absl::Status CheckName(const std::string& name) {
  if (name.size() <= limits::kNameBytesMax) return CheckPlain("--name", name);
  return absl::InvalidArgumentError(
      absl::StrCat("--name has ", name.size(), " bytes, allowed are ", limits::kNameBytesMax));
}

absl::Status TakeTensorGroups(const Texts& rules, WorkerFlags* flags) {
  for (const std::string& rule : rules) {
    const std::pair<std::string, std::string> halves = absl::StrSplit(rule, absl::MaxSplits('=', 1));
    if (halves.first.empty() || halves.second.empty() || halves.second.size() > limits::kNameBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("--tensor-group ", rule, ": expected PATTERN=GROUP, such as layer0.*=first"));
    }
    flags->tensor_groups.push_back(halves);
  }
  return absl::OkStatus();
}

absl::Status CheckLossScale(float scale) {
  int exponent = 0;
  const bool power_of_two = std::frexp(scale, &exponent) == 0.5f;
  if (scale >= LossScaler::kMin && scale <= LossScaler::kMax && power_of_two) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--loss-scale ", scale, ": expected a power of two, 1 to 16777216"));
}

absl::Status TakeBatch(const std::string& text, BatchFlags* batch) {
  if (text != "job" && text != "auto") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch ", text,
        ": expected job or auto; how many samples a job's batches have says the server's --batch"));
  }
  batch->follows_device = text == "auto";
  return absl::OkStatus();
}

absl::Status TakeMicroBatch(const std::string& text, BatchFlags* batch) {
  batch->pieces_follow_device = text == "auto";
  if (text == "auto" || text == "off") return absl::OkStatus();
  if (absl::SimpleAtoi(text, &batch->piece_samples) && batch->piece_samples > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--micro-batch ", text, ": expected a number of samples, auto or off"));
}

absl::Status Prefixed(const char* flag, const absl::Status& status) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", status.message()));
}

absl::StatusOr<CodecRules> ParseCodecRules(const std::string& text) {
  absl::StatusOr<CodecRules> rules = CodecRules::Parse(text);
  if (!rules.ok()) return Prefixed("--codec", rules.status());
  return rules;
}

absl::Status TakePullCodec(const std::string& name, CodecPolicy::Options* codec) {
  codec->pull_auto = name == "auto";
  if (codec->pull_auto) return absl::OkStatus();
  const absl::StatusOr<CodecId> parsed = ParseValueCodec(name);
  if (!parsed.ok()) return Prefixed("--pull-codec", parsed.status());
  codec->pull_codec = *parsed;
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> ParseResidualFlush(const std::string& text) {
  absl::Duration period;
  if (absl::ParseDuration(text, &period) && period > absl::ZeroDuration()) return period;
  return absl::InvalidArgumentError(
      absl::StrCat("--residual-flush ", text, ": expected a duration such as 60s"));
}

absl::StatusOr<absl::Duration> ParseReconnectFor(const std::string& text) {
  absl::Duration patience;
  if (absl::ParseDuration(text, &patience) && patience >= absl::ZeroDuration()) return patience;
  return absl::InvalidArgumentError(
      absl::StrCat("--reconnect-for ", text, ": expected a duration such as 10m"));
}

// The option takes no other names than auto, grpc and ucx.
absl::Status TakeTransport(const std::string& name, WorkerFlags* flags) {
  flags->shared_memory = name == "auto";
  flags->ucx = name == "ucx";
  if (!flags->ucx || HaveUcx()) return absl::OkStatus();
  return absl::InvalidArgumentError("--transport ucx: this program has been built without UCX");
}

// The option takes no other names.
absl::StatusOr<ParameterSource> ParseParametersFrom(const std::string& name) {
  return name == "store"     ? ParameterSource::kStore
         : name == "workers" ? ParameterSource::kWorkers
                             : ParameterSource::kServer;
}

absl::Status CheckServeParameters(const std::string& address) {
  if (address.empty()) return absl::OkStatus();
  RECON_RETURN_IF_ERROR(CheckAddress("--serve-parameters", address));
  if (!IsWildcard(address)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--serve-parameters ", address,
                                                 ": name the address at which other workers reach this one"));
}

// A choice of two words, `yes` and another: whether it is `yes` goes to `*target`.
FlagField Choice(const char* otherwise, const char* yes, bool* target) {
  return FlagField::To<std::string>(otherwise,
                                    [yes, target](const std::string& text) { *target = text == yes; });
}

FlagGroup PlaceFlags(WorkerFlags* flags) {
  return {"Place in the job",
          {
              {"--server", {&flags->server, CheckServer}, "HOST:PORT of recon-server"},
              {"--name",
               {&flags->name, CheckName},
               "unique in the job; a new process of the same name replaces its holder, dead or alive; "
               "default <host>-<random>"},
          }};
}

FlagGroup ModelFlags(WorkerFlags* flags) {
  return {
      "Model, data and device",
      {
          {"--model", &flags->model.model,
           "mlp:784-512-256-10, or with simulated computing resnet50, vgg16, bert-base or "
           "synthetic:SHAPES_FILE (synthetic:resnet50 is resnet50)"},
          // RECON_DATA is the server's directory.
          {"--data", &flags->data, "idx:DIR, cifar10:DIR or clusters:TRAIN,TEST[,FEATURES,CLASSES]",
           std::nullopt, "RECON_DATASET"},
          {"--tensor-group",
           FlagField::To<Texts>({}, [flags](const Texts& rules) { return TakeTensorGroups(rules, flags); }),
           "PATTERN=GROUP: tensors whose names match are of that group, for the policies and codecs "
           "of groups; the first that matches counts; the same for all workers of a job"},
          {"--device", &flags->model.device, "auto, cpu or cuda:N"},
          {"--threads", &flags->model.threads, "CPU threads of matrix products", CLI::Range(1, 1024)},
          {"--precision", FlagField::Parsed("fp32", &flags->model.precision, ParsePrecision),
           "of computing: fp32, bf16, or fp16 with dynamic loss scaling; the server's parameters are "
           "fp32 in any case. A CPU rounds to it after each layer, and gets no faster"},
          {"--loss-scale",
           {&flags->loss_scale, CheckLossScale},
           "that --precision fp16 begins with, a power of two; half after values that are too large, "
           "twice after 2,000 batches without"},
      }};
}

FlagGroup BatchFlagGroup(BatchFlags* batch) {
  return {"Batches",
          {
              // RECON_BATCH is the server's.
              {"--batch",
               FlagField::To<std::string>(
                   "job", [batch](const std::string& text) { return TakeBatch(text, batch); }),
               "job: of the server's --batch; or auto, with asp and ssp: as large as memory and speed of "
               "the device suggest, each one push at the same learning rate",
               std::nullopt, "RECON_WORKER_BATCH"},
              {"--batch-min", &batch->min, "samples, with --batch auto", CLI::Range(1, 1'000'000'000)},
              {"--batch-max", &batch->max, "samples, with --batch auto; 0: those of a split",
               CLI::Range(0, 1'000'000'000)},
              {"--micro-batch",
               FlagField::To<std::string>(
                   "off", [batch](const std::string& text) { return TakeMicroBatch(text, batch); }),
               "samples that are computed at a time: a batch's gradient is the sum of its pieces'; auto: "
               "as many as memory and speed of the device suggest; off: the whole batch"},
          }};
}

FlagGroup CodecFlags(WorkerFlags* flags) {
  CodecPolicy::Options* const codec = &flags->codec;
  EncoderOptions* const encoder = &flags->encoder;
  return {"Gradients and parameters on the wire",
          {
              {"--codec", FlagField::Parsed("fp16", &codec->rules, ParseCodecRules),
               "of gradients: auto, fp32, fp16, bf16, int8, topk:RATIO, randomk:RATIO or "
               "threshold:MAGNITUDE; then ,GROUP=CODEC for groups that match a pattern"},
              {"--pull-codec",
               FlagField::To<std::string>(
                   "auto", [codec](const std::string& name) { return TakePullCodec(name, codec); }),
               "of parameters: fp32, fp16, bf16, or auto: as --codec auto chooses, else fp32"},
              {"--error-feedback", Choice("on", "on", &encoder->feedback),
               "on: what int8 and sparse codecs leave out is added to the next gradient",
               CLI::IsMember({"on", "off"})},
              {"--topk", Choice("exact", "sampled", &encoder->sampled),
               "exact, or sampled: the threshold is that of a sample", CLI::IsMember({"exact", "sampled"})},
              {"--sparsity-warmup", &codec->warmup_data_epochs,
               "data epochs over which topk and randomk fall from a ratio of 0.25 to theirs",
               CLI::Range(0.0, 1e6)},
              {"--momentum-correction", &encoder->momentum,
               "momentum the worker applies before it selects (deep gradient compression); use it "
               "with --optimizer sgd on the server",
               CLI::Range(0.0, 0.9999)},
              {"--residual", Choice("fp32", "bf16", &encoder->bf16_residual),
               "fp32, or bf16: half the memory for what is left out", CLI::IsMember({"fp32", "bf16"})},
              {"--residual-flush", FlagField::Parsed("60s", &codec->flush_period, ParseResidualFlush),
               "what is left out is sent whole once in so long; a killed worker loses no more"},
          }};
}

FlagGroup PushFlags(WorkerFlags* flags) {
  return {"Pushes and ways of frames",
          {
              {"--depth", &flags->depth, "pushes under way while computing; bsp uses 1, ssp:S at most S+1",
               CLI::Range(1, limits::kPipelineDepthMax)},
              {"--accumulate", &flags->accumulate,
               "batches whose gradients, their mean, make one push: larger batches than the device holds, or "
               "fewer bytes; without local steps",
               CLI::Range(1, 1'000'000)},
              {"--connections", &flags->connections,
               "to each server at most, for gradients and parameters; with TLS more of them carry more",
               CLI::Range(1, limits::kDataConnectionsMax)},
              {"--transport",
               FlagField::To<std::string>(
                   "auto", [flags](const std::string& name) { return TakeTransport(name, flags); }),
               "auto (shared memory where the server is on this machine and offers it), grpc, or ucx "
               "(InfiniBand, RoCE; where the server has --ucx-listen)",
               CLI::IsMember({"auto", "grpc", "ucx"})},
          }};
}

FlagGroup SimulationFlags(WorkerFlags* flags) {
  return {"Simulation",
          {
              {"--step-ms",
               FlagField::To<double>(0, [flags](double ms) { flags->step_time = absl::Milliseconds(ms); }),
               "simulated computing time: each step takes at least so long", CLI::Range(0.0, 3.6e6)},
              {"--slow-factor", &flags->slow_factor,
               "simulated slowness: each step takes so many times its computing time, or --step-ms",
               CLI::Range(1.0, 1e4)},
          }};
}

FlagGroup JoiningFlags(WorkerFlags* flags) {
  return {
      "Parameters of a worker that joins",
      {
          {"--parameters-from", FlagField::Parsed("server", &flags->parameters_from, ParseParametersFrom),
           "where a worker that joins takes them: server, store (the newest snapshot, read where the "
           "server writes it), or workers (those with --serve-parameters); what of it is not the server's "
           "comes from the server",
           CLI::IsMember({"server", "store", "workers"})},
          {"--serve-parameters",
           {&flags->serve_parameters, CheckServeParameters},
           "HOST:PORT where this worker hands its parameters to workers that join, HOST as they "
           "reach it; off by default"},
      }};
}

FlagGroup ProcessFlags(WorkerFlags* flags) {
  return {"Process",
          {
              {"--reconnect-for", FlagField::Parsed("10m", &flags->reconnect_for, ParseReconnectFor),
               "keep trying so long when the server cannot be reached"},
              // RECON_METRICS_ADDRESS is the server's.
              {"--metrics-address", &flags->metrics_address,
               "HOST:PORT for Prometheus, or PORT on loopback; off by default", std::nullopt,
               "RECON_WORKER_METRICS_ADDRESS"},
              LogLevelFlag(&flags->log_level),
          }};
}

FlagGroup SecurityFlags(TlsFlags* tls) {
  return {"Security",
          {
              {"--tls-cert", &tls->cert, "PEM certificate of this worker"},
              {"--tls-key", &tls->key, "PEM key of the certificate"},
              {"--tls-ca", &tls->ca, "PEM certificate of the CA that the server must have"},
              {"--tls-crl", &tls->crl,
               "PEM file with the certificates that the CA has revoked: a server that shows one is not "
               "trusted, and no worker that does gets parameters (--serve-parameters); it is read again when "
               "it changes"},
              {"--insecure", &tls->insecure, "plain text to an address other than loopback"},
              {"--token-file", &tls->token_file,
               "file with the token that the head wants; the environment may have the token itself "
               "(RECON_TOKEN), and the head's user needs neither on its machine"},
          }};
}

}  // namespace

FlagTable WorkerFlagTable(WorkerFlags* flags) {
  return FlagTable({PlaceFlags(flags), ModelFlags(flags), BatchFlagGroup(&flags->batch), CodecFlags(flags),
                    PushFlags(flags), SimulationFlags(flags), JoiningFlags(flags), ProcessFlags(flags),
                    SecurityFlags(&flags->tls)});
}

}  // namespace recon
