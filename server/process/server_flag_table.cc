#include "server/process/server_flag_table.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "server/process/policy_flags.h"

namespace recon {
namespace {

using Texts = std::vector<std::string>;

absl::StatusOr<absl::Duration> ParseInterval(const char* flag, const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::Milliseconds(10) ||
      duration > absl::Hours(24 * 30)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", text, ": expected a duration of 10ms to 720h, such as 300ms, 30s or 5m"));
  }
  return duration;
}

// A duration of 10ms to 720h; `zero`: or 0.
FlagField Interval(const char* flag, const char* otherwise, absl::Duration* target, bool zero = false) {
  return FlagField::Parsed(
      otherwise, target, [flag, zero](const std::string& text) -> absl::StatusOr<absl::Duration> {
        absl::Duration duration;
        if (zero && absl::ParseDuration(text, &duration) && duration == absl::ZeroDuration()) return duration;
        return ParseInterval(flag, text);
      });
}

template <typename Take>
FlagField Milliseconds(const char* flag, const char* otherwise, Take take) {
  return FlagField::To<std::string>(otherwise, [flag, take](const std::string& text) -> absl::Status {
    RECON_ASSIGN_OR_RETURN(const absl::Duration duration, ParseInterval(flag, text));
    take(static_cast<uint32_t>(absl::ToInt64Milliseconds(duration)));
    return absl::OkStatus();
  });
}

// What is a worker's --data would become a directory of that name.
absl::Status CheckDataDirectory(const std::string& data) {
  for (const char* source : {"idx:", "cifar10:", "clusters:"}) {
    if (!absl::StartsWith(data, source)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--data ", data, " is training data, which workers read: a server's --data is its directory"));
  }
  if (!absl::StrContains(data, "://")) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--data ", data,
      " is the address of a store: a server's --data is a directory, --snapshot-dir may be one"));
}

absl::Status ParseGroup(const std::string& text, std::map<std::string, GroupPolicy>* groups) {
  const absl::Status malformed = absl::InvalidArgumentError(absl::StrCat(
      "--group ", text, ": expected NAME:lr_scale=X or NAME:weight_decay_scale=X, comma-separated"));
  const std::pair<std::string, std::string> halves = absl::StrSplit(text, absl::MaxSplits(':', 1));
  if (halves.first.empty() || halves.second.empty()) return malformed;
  GroupPolicy& policy = (*groups)[halves.first];
  for (absl::string_view setting : absl::StrSplit(halves.second, ',')) {
    const std::pair<std::string, std::string> entry = absl::StrSplit(setting, absl::MaxSplits('=', 1));
    double value = 0;
    if (!absl::SimpleAtod(entry.second, &value) || !(value >= 0 && value <= 1e6)) return malformed;
    if (entry.first == "lr_scale") {
      policy.learning_rate_scale = value;
    } else if (entry.first == "weight_decay_scale") {
      policy.weight_decay_scale = value;
    } else {
      return malformed;
    }
  }
  return absl::OkStatus();
}

absl::Status TakeGroups(const Texts& texts, std::map<std::string, GroupPolicy>* groups) {
  // Biases and norms, by common practice; --group overrides it.
  (*groups)["no_decay"].weight_decay_scale = 0;
  for (const std::string& text : texts) RECON_RETURN_IF_ERROR(ParseGroup(text, groups));
  return absl::OkStatus();
}

absl::Status TakeRoleRules(const Texts& texts, std::vector<RoleRule>* rules) {
  for (const std::string& text : texts) {
    const auto rule = RoleRule::Parse(text);
    if (!rule.ok()) return absl::InvalidArgumentError(absl::StrCat("--allow ", rule.status().message()));
    rules->push_back(*rule);
  }
  return absl::OkStatus();
}

// --warmup-updates stays.
absl::Status TakeSchedule(const std::string& text, LearningRateSchedule* schedule) {
  RECON_ASSIGN_OR_RETURN(LearningRateSchedule parsed, ParseSchedule(text));
  parsed.warmup_updates = schedule->warmup_updates;
  *schedule = parsed;
  return absl::OkStatus();
}

absl::Status TakeCodecs(const std::string& names, JobConfig* job) {
  if (names.empty()) return absl::OkStatus();
  // Initial values come in FP32, and what an encoder kept back.
  uint32_t accepted = 1u << static_cast<int>(CodecId::kFp32);
  for (const absl::string_view name : absl::StrSplit(names, ',')) {
    const absl::StatusOr<CodecId> codec = ParseCodecId(name);
    if (!codec.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("--accept-codecs: ", codec.status().message()));
    }
    accepted |= 1u << static_cast<int>(*codec);
  }
  job->set_refused_codecs(~accepted);
  return absl::OkStatus();
}

absl::StatusOr<ServerFlags::AfterLostDisk> ParseAfterLostDisk(const std::string& text) {
  if (text == "together") return ServerFlags::AfterLostDisk::kTogether;
  if (text == "newest") return ServerFlags::AfterLostDisk::kNewest;
  return absl::InvalidArgumentError(
      absl::StrCat("--after-lost-disk ", text, ": expected together or newest"));
}

// The option takes no other texts than these.
absl::StatusOr<ServerFlags::OnDivergence> ParseOnDivergence(const std::string& text) {
  return text == "stop"       ? ServerFlags::OnDivergence::kStop
         : text == "rollback" ? ServerFlags::OnDivergence::kRollback
                              : ServerFlags::OnDivergence::kIgnore;
}

FlagGroup AddressFlags(ServerFlags* flags) {
  return {
      "Addresses and directories",
      {
          {"--listen", &flags->listen, "HOST:PORT; port 0 takes a free one (written to <data>/ADDRESS)"},
          {"--data",
           {&flags->data, CheckDataDirectory},
           "data directory: control database, push log, lock, snapshots",
           {},
           "",
           Flag::Need::kMustBeGiven},
          {"--snapshot-dir", &flags->snapshots.directory,
           "snapshots go here: a directory, s3://BUCKET/PREFIX, hdfs://HOST/PATH or "
           "webhdfs://HOST:PORT/PATH; "
           "default <data>/snapshots"},
          {"--from-snapshot", &flags->from_snapshot.directory,
           "DIR or DIR:N: take the parameters of a new job from snapshot N, or the newest, of this directory "
           "or store; the first worker's tensors are found there by name"},
          {"--metrics-address", &flags->metrics_address,
           "HOST:PORT for Prometheus, or PORT on loopback; off by default"},
          {"--dashboard", &flags->dashboard,
           "HOST:PORT for a page that shows the job in a browser, or PORT on loopback; port 0 takes a free "
           "one (written to <data>/DASHBOARD); off by default"},
          {"--tensorboard", &flags->tensorboard,
           "directory for event files of the job's curves, for TensorBoard; off by default"},
      }};
}

FlagGroup SecurityFlags(ServerFlags* flags) {
  return {
      "Security",
      {
          {"--tls-cert", &flags->tls.cert, "PEM certificate of this server"},
          {"--tls-key", &flags->tls.key, "PEM key of the certificate"},
          {"--tls-ca", &flags->tls.ca, "PEM certificate of the CA that workers must have"},
          {"--tls-crl", &flags->tls.crl,
           "PEM file with the certificates that the CA has revoked: who shows one may do nothing, and with "
           "--join there is no connection to a head or of a client that does; it is read again when it "
           "changes"},
          {"--names-by-certificate", &flags->access.names_by_certificate,
           "a worker's --name is the CN of its certificate, or that, a dash and more"},
          {"--insecure", &flags->tls.insecure, "plain text on an address other than loopback"},
          {"--allow",
           FlagField::To<Texts>(
               {}, [flags](const Texts& rules) { return TakeRoleRules(rules, &flags->access.allow); }),
           "ROLE=cn:PATTERN, ROLE=ou:PATTERN or ROLE=uri:PATTERN: a certificate with such a name has that "
           "role (observer, worker, server, operator); * is any text; may be given more than once"},
          {"--tokens", &flags->access.tokens,
           "file with a line ROLE TOKEN for each token; without TLS, who shows none has no role then"},
          {"--token-file", &flags->tls.token_file,
           "file with the token that all processes of the job show; the environment may have the token "
           "itself "
           "(RECON_TOKEN); without both it is drawn, and kept in JOB_TOKEN in --data; with --join: the one "
           "that "
           "the head wants"},
          {"--open", &flags->access.open,
           "DANGER: whoever reaches the port may join, read the model and send gradients, without any "
           "secret"},
      }};
}

FlagGroup FrameFlags(ServerFlags* flags) {
  return {"How frames travel",
          {
              {"--shared-memory", FlagField::TrueOrFalse(&flags->frames.shared_memory),
               "workers on this machine, of this user and in this network namespace, push and pull "
               "through shared memory; never with TLS"},
              {"--ucx-listen", &flags->frames.ucx_listen,
               "HOST:PORT where workers with --transport ucx push and pull over UCX (InfiniBand, RoCE; also "
               "TCP): plain text, never with TLS; port 0 is any; off by default"},
          }};
}

FlagGroup ClusterFlags(ServerFlags* flags) {
  return {
      "Several servers",
      {
          {"--servers", &flags->servers,
           "servers that share the model, this one among them; the others --join it",
           CLI::Range(1u, limits::kServersMax)},
          {"--replace-after", Interval("--replace-after", "1m", &flags->replace_after),
           "a server that has been gone for so long loses its place to one that waits, which begins "
           "from the newest snapshot"},
          {"--after-lost-disk", FlagField::Parsed("together", &flags->after_lost_disk, ParseAfterLostDisk),
           "what to do when a server comes back from a snapshot alone and others have gone on from it: "
           "together (all go back to that snapshot, what came since is trained again) or newest (each shard "
           "stays as new as it is, and the log says with numbers how they differ)",
           CLI::IsMember({"together", "newest"})},
          {"--join", &flags->join,
           "HOST:PORT of the job's head: be one of its --servers. Only flags of this process go with it; "
           "the job's are the head's"},
          {"--advertise", &flags->advertise,
           "HOST:PORT at which workers reach this server; default: where it listens"},
      }};
}

FlagGroup ProcessFlags(ServerFlags* flags) {
  return {"Process",
          {
              {"--exit-when-done", &flags->exit_when_done, "end when all data epochs are completed"},
              {"--idle-timeout", Interval("--idle-timeout", "0s", &flags->idle_timeout, /*zero=*/true),
               "end, with a snapshot and exit code 3, when nobody has trained for so long; longer than a "
               "push takes, and than workers need to come back; 0s = never"},
              LogLevelFlag(&flags->log_level),
              {"--apply-threads", &flags->apply_threads,
               "threads that apply updates; 0 = one per core, at most 16", CLI::Range(0, 256)},
          }};
}

FlagGroup OptimizerFlags(ServerFlags* flags) {
  return {"Optimizer",
          {
              {"--optimizer",
               FlagField::Parsed("adam", &flags->optimizer.kind,
                                 [](const std::string& name) { return ParseOptimizer(name); }),
               "sgd, momentum, nesterov, adam or adamw; mean: workers have the optimizer, and are handed the "
               "mean of each step"},
              {"--learning-rate", &flags->optimizer.learning_rate, "base learning rate"},
              {"--momentum", &flags->optimizer.momentum, "momentum, nesterov: factor"},
              {"--beta1", &flags->optimizer.beta1, "adam, adamw"},
              {"--beta2", &flags->optimizer.beta2, "adam, adamw"},
              {"--epsilon", &flags->optimizer.epsilon, "adam, adamw"},
              {"--weight-decay", &flags->optimizer.weight_decay, "L2; decoupled with adamw"},
              {"--clip-norm", &flags->optimizer.clip_norm, "largest global L2 norm of a push; 0 = off"},
              {"--schedule",
               FlagField::To<std::string>("constant",
                                          [flags](const std::string& text) {
                                            return TakeSchedule(text, &flags->optimizer.schedule);
                                          }),
               "constant, step:UPDATES[:GAMMA] or cosine:TOTAL_UPDATES[:FINAL_FRACTION]; counts the server's "
               "updates, or, with local steps, the job's batches"},
              {"--warmup-updates", &flags->optimizer.schedule.warmup_updates,
               "linear warm-up over so many updates"},
              {"--group",
               FlagField::To<Texts>(
                   {}, [flags](const Texts& texts) { return TakeGroups(texts, &flags->groups); }),
               "policy of a tensor group, NAME:lr_scale=X,weight_decay_scale=Y"},
          }};
}

FlagGroup AgreementFlags(ServerFlags* flags) {
  JobConfig* const job = &flags->job;
  FlagGroup group{
      "Policy: how workers agree",
      {
          {"--accept-codecs",
           FlagField::To<std::string>("", [job](const std::string& names) { return TakeCodecs(names, job); }),
           "codecs that pushes may use, by their names on the wire (fp32,fp16,bf16,int8,sparse-fp16, "
           "...); all by default, fp32 always"},
      }};
  for (Flag& flag : PolicyFlagRows(&flags->policy)) group.flags.push_back(std::move(flag));
  return group;
}

FlagGroup JobFlags(ServerFlags* flags) {
  JobConfig* const job = &flags->job;
  return {
      "Job",
      {
          {"--workers-min",
           FlagField::To<uint32_t>(1, [job](uint32_t workers) { job->set_workers_min(workers); }),
           "workers to wait for before the job starts", CLI::Range(1, 4096)},
          {"--data-epochs",
           FlagField::To<uint32_t>(10, [job](uint32_t epochs) { job->set_data_epochs(epochs); }),
           "passes over the training data", CLI::Range(1u, limits::kDataEpochsMax)},
          {"--batch",
           FlagField::To<uint32_t>(64, [job](uint32_t samples) { job->set_batch_samples(samples); }),
           "samples per step of a worker", CLI::Range(1, 1 << 20)},
          {"--split-samples",
           FlagField::To<uint32_t>(0, [job](uint32_t samples) { job->set_split_samples(samples); }),
           "samples of a split, of which a lease has one or more; 0 = 2000, or what a round of local "
           "steps takes if that is more",
           CLI::Range(uint32_t{0}, kSplitSamplesMax)},
          {"--eval-split-samples",
           FlagField::To<uint32_t>(2500, [job](uint32_t samples) { job->set_eval_split_samples(samples); }),
           "test samples per evaluation lease", CLI::Range(1, 1 << 30)},
          {"--seed", FlagField::To<uint64_t>(1, [job](uint64_t seed) { job->set_seed(seed); }),
           "order of samples and initial values"},
      }};
}

FlagGroup DurabilityFlags(ServerFlags* flags) {
  return {"Durability",
          {
              {"--durability", FlagField::Parsed("log", &flags->log.durability, ParseDurability),
               "what acknowledged pushes survive: sync (power failures), log (the death of the server) or "
               "snapshot (nothing: what came after the newest snapshot is lost)",
               CLI::IsMember({"sync", "log", "snapshot"})},
              {"--log-segment-bytes", &flags->log.segment_bytes, "bytes of a file of the push log",
               CLI::Range(uint64_t{1} << 16, uint64_t{1} << 32)},
              {"--log-max-bytes", &flags->log.bytes_max,
               "bytes that the push log may take on the disk; snapshots are taken early to stay below, and "
               "pushes wait where that does not help (0: half of what is free, 16 GiB at most)",
               CLI::Range(uint64_t{0}, uint64_t{1} << 50)},
              {"--replay-target", Interval("--replay-target", "5s", &flags->log.replay_target),
               "a snapshot is taken early when replaying the log would take longer"},
          }};
}

FlagGroup SnapshotFlags(ServerFlags* flags) {
  return {"Snapshots",
          {
              {"--snapshot-interval", Interval("--snapshot-interval", "30s", &flags->snapshots.interval),
               "time between periodic snapshots, such as 30s"},
              {"--snapshot-memory", &flags->snapshots.memory_percent,
               "memory for pages that a snapshot keeps while pushes change them, in percent of the state; "
               "with less than 100 pushes may have to wait",
               CLI::Range(1, 100)},
              {"--snapshot-keep", &flags->snapshots.keep.last,
               "newest snapshots to keep; two at least: one may be found damaged", CLI::Range(2, 100000)},
              {"--snapshot-keep-hourly", &flags->snapshots.keep.hourly,
               "and the newest of each hour, of so many hours", CLI::Range(0, 100000)},
              {"--snapshot-keep-daily", &flags->snapshots.keep.daily,
               "and the newest of each day, of so many days", CLI::Range(0, 100000)},
              {"--keep-best", FlagField::Parsed("", &flags->snapshots.keep.best, ParseBestBy),
               "accuracy or loss: take a snapshot after each evaluation that is the best so far, "
               "and keep the best"},
              {"--on-divergence", FlagField::Parsed("ignore", &flags->on_divergence, ParseOnDivergence),
               "what to do when parameters are not finite or losses stay far off: ignore (say so), stop (end "
               "with 1) or rollback (go back to the last good snapshot, twice at most, then stop)",
               CLI::IsMember({"ignore", "stop", "rollback"})},
              {"--zstd-level", &flags->snapshots.zstd_level,
               "compression of snapshots: 1 (frequencies of bytes only) to 19", CLI::Range(1, 19)},
          }};
}

FlagGroup MemberFlags(ServerFlags* flags) {
  JobConfig* const job = &flags->job;
  return {
      "Members and leases",
      {
          {"--heartbeat-interval",
           Milliseconds("--heartbeat-interval", "300ms",
                        [job](uint32_t ms) { job->set_heartbeat_interval_ms(ms); }),
           "time between a worker's heartbeats"},
          {"--suspect-after", Interval("--suspect-after", "1s", &flags->timeouts.suspect_after),
           "silence after which a worker is shown as suspect"},
          {"--evict-after", Interval("--evict-after", "3s", &flags->timeouts.evict_after),
           "silence after which nobody waits for a worker and its leases go to others"},
          {"--lease-duration",
           Milliseconds("--lease-duration", "10s", [job](uint32_t ms) { job->set_lease_duration_ms(ms); }),
           "a lease not renewed for so long is taken back, and none of a worker that stands still is sooner"},
          {"--lease-target", Interval("--lease-target", "1s", &flags->lease_target, /*zero=*/true),
           "a lease has as many splits as its worker computes in so long, fewer near the end of a data "
           "epoch; "
           "0s, and with bsp, local:H and diloco:H: one"},
      }};
}

}  // namespace

FlagTable ServerFlagTable(ServerFlags* flags) {
  return FlagTable({AddressFlags(flags), SecurityFlags(flags), FrameFlags(flags), ClusterFlags(flags),
                    ProcessFlags(flags), OptimizerFlags(flags), AgreementFlags(flags), JobFlags(flags),
                    DurabilityFlags(flags), SnapshotFlags(flags), MemberFlags(flags)});
}

}  // namespace recon
