#include "server/process/server_flags.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/machine_limits.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/codec/codec.h"
#include "common/metrics/metrics.h"
#include "common/storage/store_url.h"

namespace recon {
namespace {

constexpr uint32_t kSplitSamples = 2000;
constexpr uint32_t kSplitSamplesMax = 1 << 30;
constexpr uint64_t kRoundsPerSplit = 4;
// Not given: what goes with --sync.
constexpr double kAsSyncSays = -1;

// Flags that need more than CLI11's own conversion.
struct RawFlags {
  std::string accept_codecs;
  std::string optimizer = "adam";
  std::string schedule = "constant";
  std::string sync = "asp";
  uint32_t local_steps = 0;
  std::string outer_optimizer;
  double outer_learning_rate = kAsSyncSays, outer_momentum = kAsSyncSays;
  std::string correction = "none";
  int auto_bound_max = -1;
  uint32_t auto_local_steps_max = 0;
  uint32_t fragments = 0;
  bool local_steps_by_speed = false;
  uint32_t quorum = 0;
  std::vector<std::string> allow;
  std::string grace = "auto";
  std::string step_samples = "0";
  std::vector<std::string> sync_periods;
  std::vector<std::string> groups;
  std::string durability = "log";
  std::string replay_target = "5s";
  std::string replace_after = "1m";
  std::string idle_timeout = "0s";
  std::string snapshot_interval = "30s";
  std::string keep_best;
  std::string on_divergence = "ignore";
  std::string heartbeat_interval = "300ms";
  std::string suspect_after = "1s";
  std::string evict_after = "3s";
  std::string lease_duration = "10s";
  std::string lease_target = "1s";
  uint64_t seed = 1;
  uint32_t batch = 64, data_epochs = 10, split_samples = 0, eval_split_samples = 2500, workers_min = 1;
};

absl::StatusOr<absl::Duration> ParseInterval(const char* flag, const std::string& text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration < absl::Milliseconds(10) ||
      duration > absl::Hours(24 * 30)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", text, ": expected a duration of 10ms to 720h, such as 300ms, 30s or 5m"));
  }
  return duration;
}

// HOST:PORT of `text`, which may be a port alone, for loopback.
absl::StatusOr<std::string> DashboardAddress(const std::string& text, bool on_network) {
  const bool port_alone = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::string address = port_alone ? absl::StrCat("127.0.0.1:", text) : text;
  if (!CheckAddress("--dashboard", address).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dashboard ", text, ": expected HOST:PORT, or PORT alone for 127.0.0.1"));
  }
  if (IsLoopback(address) || on_network) return address;
  return absl::InvalidArgumentError(absl::StrCat(
      "--dashboard ", text,
      " is not loopback: everybody who reaches it can see the job. Give --tls-cert, --tls-key and "
      "--tls-ca (browsers then need a certificate of that CA), or --insecure"));
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

void DefineFlags(CommandLine* line, ServerFlags* flags, RawFlags* raw) {
  CLI::App* const app = line->app();
  const auto env = [](CLI::Option* option, const char* name) { return option->envname(name); };
  line->AddConfigFile();
  line->BeginGroup("Addresses and directories");
  env(app->add_option("--listen", flags->listen,
                      "HOST:PORT; port 0 takes a free one (written to <data>/ADDRESS)"),
      "RECON_LISTEN");
  env(app->add_option("--data", flags->data, "data directory: control database, push log, lock, snapshots"),
      "RECON_DATA")
      ->required();
  env(app->add_option(
          "--snapshot-dir", flags->snapshot_dir,
          "snapshots go here: a directory, s3://BUCKET/PREFIX, hdfs://HOST/PATH or webhdfs://HOST:PORT/PATH; "
          "default <data>/snapshots"),
      "RECON_SNAPSHOT_DIR");
  env(app->add_option(
          "--from-snapshot", flags->from_snapshot,
          "DIR or DIR:N: take the parameters of a new job from snapshot N, or the newest, of this directory "
          "or store; the first worker's tensors are found there by name"),
      "RECON_FROM_SNAPSHOT");
  env(app->add_option("--metrics-address", flags->metrics_address,
                      "HOST:PORT for Prometheus, or PORT on loopback; off by default"),
      "RECON_METRICS_ADDRESS");
  env(app->add_option(
          "--dashboard", flags->dashboard,
          "HOST:PORT for a page that shows the job in a browser, or PORT on loopback; port 0 takes a free "
          "one (written to <data>/DASHBOARD); off by default"),
      "RECON_DASHBOARD");
  env(app->add_option("--tensorboard", flags->tensorboard,
                      "directory for event files of the job's curves, for TensorBoard; off by default"),
      "RECON_TENSORBOARD");
  line->BeginGroup("Security");
  env(app->add_option("--tls-cert", flags->tls_cert, "PEM certificate of this server"), "RECON_TLS_CERT");
  env(app->add_option("--tls-key", flags->tls_key, "PEM key of the certificate"), "RECON_TLS_KEY");
  env(app->add_option("--tls-ca", flags->tls_ca, "PEM certificate of the CA that workers must have"),
      "RECON_TLS_CA");
  env(app->add_flag("--insecure", flags->insecure, "plain text on an address other than loopback"),
      "RECON_INSECURE");
  env(app->add_option(
          "--allow", raw->allow,
          "ROLE=cn:PATTERN, ROLE=ou:PATTERN or ROLE=uri:PATTERN: a certificate with such a name has that "
          "role (observer, worker, server, operator); * is any text; may be given more than once"),
      "RECON_ALLOW");
  env(app->add_option(
          "--tokens", flags->tokens,
          "file with a line ROLE TOKEN for each token; without TLS, who shows none has no role then"),
      "RECON_TOKENS");
  env(app->add_option("--token-file", flags->token_file,
                      "with --join: file with the token that the head wants"),
      "RECON_TOKEN_FILE");
  line->BeginGroup("How frames travel");
  env(app->add_option("--shared-memory", flags->shared_memory,
                      "workers on this machine, of this user and in this network namespace, push and pull "
                      "through shared memory; never with TLS"),
      "RECON_SHARED_MEMORY");
  env(app->add_option(
          "--ucx-listen", flags->ucx_listen,
          "HOST:PORT where workers with --transport ucx push and pull over UCX (InfiniBand, RoCE; also "
          "TCP): plain text, never with TLS; port 0 is any; off by default"),
      "RECON_UCX_LISTEN");
  line->BeginGroup("Several servers");
  env(app->add_option("--servers", flags->servers,
                      "servers that share the model, this one among them; the others --join it")
          ->check(CLI::Range(1u, limits::kServersMax)),
      "RECON_SERVERS");
  env(app->add_option(
          "--replace-after", raw->replace_after,
          "a server that has been gone for so long loses its place to one that waits, which begins "
          "from the newest snapshot"),
      "RECON_REPLACE_AFTER");
  env(app->add_option(
          "--join", flags->join,
          "HOST:PORT of the job's head: be one of its --servers. Only flags of this process go with it; "
          "the job's are the head's"),
      "RECON_JOIN");
  env(app->add_option("--advertise", flags->advertise,
                      "HOST:PORT at which workers reach this server; default: where it listens"),
      "RECON_ADVERTISE");
  line->BeginGroup("Process");
  env(app->add_flag("--exit-when-done", flags->exit_when_done, "end when all data epochs are completed"),
      "RECON_EXIT_WHEN_DONE");
  env(app->add_option(
          "--idle-timeout", raw->idle_timeout,
          "end, with a snapshot and exit code 3, when nobody has trained for so long; longer than a "
          "push takes, and than workers need to come back; 0s = never"),
      "RECON_IDLE_TIMEOUT");
  env(app->add_option("--log-level", flags->log_level, "debug, info, warn or error")
          ->check(CLI::IsMember({"debug", "info", "warn", "error"})),
      "RECON_LOG_LEVEL");
  env(app->add_option("--apply-threads", flags->apply_threads,
                      "threads that apply updates; 0 = one per core, at most 16")
          ->check(CLI::Range(0, 256)),
      "RECON_APPLY_THREADS");

  line->BeginGroup("Optimizer");
  env(app->add_option("--optimizer", raw->optimizer, "sgd, momentum, nesterov, adam or adamw"),
      "RECON_OPTIMIZER");
  env(app->add_option("--learning-rate", flags->optimizer.learning_rate, "base learning rate"),
      "RECON_LEARNING_RATE");
  env(app->add_option("--momentum", flags->optimizer.momentum, "momentum, nesterov: factor"),
      "RECON_MOMENTUM");
  env(app->add_option("--beta1", flags->optimizer.beta1, "adam, adamw"), "RECON_BETA1");
  env(app->add_option("--beta2", flags->optimizer.beta2, "adam, adamw"), "RECON_BETA2");
  env(app->add_option("--epsilon", flags->optimizer.epsilon, "adam, adamw"), "RECON_EPSILON");
  env(app->add_option("--weight-decay", flags->optimizer.weight_decay, "L2; decoupled with adamw"),
      "RECON_WEIGHT_DECAY");
  env(app->add_option("--clip-norm", flags->optimizer.clip_norm, "largest global L2 norm of a push; 0 = off"),
      "RECON_CLIP_NORM");
  env(app->add_option(
          "--schedule", raw->schedule,
          "constant, step:UPDATES[:GAMMA] or cosine:TOTAL_UPDATES[:FINAL_FRACTION]; counts the server's "
          "updates, or, with local steps, the job's batches"),
      "RECON_SCHEDULE");
  env(app->add_option("--warmup-updates", flags->optimizer.schedule.warmup_updates,
                      "linear warm-up over so many updates"),
      "RECON_WARMUP_UPDATES");
  env(app->add_option("--group", raw->groups,
                      "policy of a tensor group, NAME:lr_scale=X,weight_decay_scale=Y"),
      "RECON_GROUP");

  line->BeginGroup("Policy: how workers agree");
  env(app->add_option(
          "--accept-codecs", raw->accept_codecs,
          "codecs that pushes may use, by their names on the wire (fp32,fp16,bf16,int8,sparse-fp16, "
          "...); all by default, fp32 always"),
      "RECON_ACCEPT_CODECS");
  env(app->add_option(
          "--sync", raw->sync,
          "asp (asynchronous), bsp (synchronous mean), ssp:S (S steps apart at most), local:H "
          "(workers train parameters of their own for H batches, then take the mean) or diloco:H "
          "(the same, and the server takes the mean as a gradient for Nesterov at 0.7 and 0.9); or auto: the "
          "server chooses, and changes it, by what it measures"),
      "RECON_SYNC");
  env(app->add_option("--local-steps", raw->local_steps,
                      "with asp, bsp or ssp: a worker trains parameters of its own for so many batches, then "
                      "pushes how far they have moved; 0 = gradients are pushed")
          ->check(CLI::Range(uint32_t{0}, limits::kLocalStepsMax)),
      "RECON_LOCAL_STEPS");
  env(app->add_option(
          "--outer-optimizer", raw->outer_optimizer,
          "with local steps, what the server does with pushes; default sgd, with diloco nesterov"),
      "RECON_OUTER_OPTIMIZER");
  env(app->add_option("--outer-learning-rate", raw->outer_learning_rate,
                      "default 1: parameters become the workers' mean (with asp and ssp 1/--workers-min), "
                      "with diloco 0.7")
          ->check(CLI::Range(0.0, 1e6)),
      "RECON_OUTER_LEARNING_RATE");
  env(app->add_option("--outer-momentum", raw->outer_momentum, "default 0.9")->check(CLI::Range(0.0, 1.0)),
      "RECON_OUTER_MOMENTUM");
  env(app->add_option(
             "--fragments", raw->fragments,
             "with local steps: so many parts of the parameters are pushed in turn, one after H/F batches, "
             "while training goes on; 0 or 1 = all together, and training waits")
          ->check(CLI::Range(uint32_t{0}, limits::kLocalStepsMax)),
      "RECON_FRAGMENTS");
  env(app->add_flag(
          "--local-steps-by-speed", raw->local_steps_by_speed,
          "with local steps: slower workers take fewer of them than the fastest, so that all push at "
          "about the same time"),
      "RECON_LOCAL_STEPS_BY_SPEED");
  env(app->add_option(
             "--quorum", raw->quorum,
             "with bsp, local:H and diloco:H: a step is closed without the slowest workers when so many "
             "have pushed it and --grace has passed; what they push goes into a later step; 0 = all are "
             "waited for")
          ->check(CLI::Range(size_t{0}, limits::kMembersMax)),
      "RECON_QUORUM");
  env(app->add_option(
          "--grace", raw->grace,
          "with --quorum: a duration, or auto: half the time that the quorum took in the last steps"),
      "RECON_GRACE");
  env(app->add_option(
          "--step-samples", raw->step_samples,
          "with bsp: samples of a step, a multiple of --batch; where workers are fewer, each pushes the mean "
          "of "
          "more batches, so that the trajectory stays. constant: as many as the job's first step has; 0: a "
          "batch of each worker"),
      "RECON_STEP_SAMPLES");
  env(app->add_option(
          "--sync-period", raw->sync_periods,
          "GROUP=N: gradients of that tensor group are in each N-th push only, the mean of N; may "
          "be given more than once"),
      "RECON_SYNC_PERIOD");
  env(app->add_option(
          "--staleness-correction", raw->correction,
          "with asp and ssp, of a gradient whose parameters have been updated since: none, inverse (it "
          "counts 1/updates), gap-aware[:VERSIONS] (its values count the less, the further "
          "parameters have moved) or dc-asgd[:VERSIONS] (its first-order change is added)"),
      "RECON_STALENESS_CORRECTION");
  env(app->add_option("--auto-bound-max", raw->auto_bound_max,
                      "with --sync auto: workers are never more pushes apart; 0 is bsp, -1 no bound")
          ->check(CLI::Range(-1, 1000)),
      "RECON_AUTO_BOUND_MAX");
  env(app->add_option(
             "--auto-local-steps-max", raw->auto_local_steps_max,
             "with --sync auto: where workers wait for the link, they may train for up to so many "
             "batches on their own; --split-samples must have so many; 0 = gradients are always pushed")
          ->check(CLI::Range(uint32_t{0}, limits::kLocalStepsMax)),
      "RECON_AUTO_LOCAL_STEPS_MAX");
  line->BeginGroup("Job");
  env(app->add_option("--workers-min", raw->workers_min, "workers to wait for before the job starts")
          ->check(CLI::Range(1, 4096)),
      "RECON_WORKERS_MIN");
  env(app->add_option("--data-epochs", raw->data_epochs, "passes over the training data")
          ->check(CLI::Range(1, 1000000)),
      "RECON_DATA_EPOCHS");
  env(app->add_option("--batch", raw->batch, "samples per step of a worker")->check(CLI::Range(1, 1 << 20)),
      "RECON_BATCH");
  env(app->add_option(
             "--split-samples", raw->split_samples,
             "samples of a split, of which a lease has one or more; 0 = 2000, or what a round of local "
             "steps takes if that is more")
          ->check(CLI::Range(uint32_t{0}, kSplitSamplesMax)),
      "RECON_SPLIT_SAMPLES");
  env(app->add_option("--eval-split-samples", raw->eval_split_samples, "test samples per evaluation lease")
          ->check(CLI::Range(1, 1 << 30)),
      "RECON_EVAL_SPLIT_SAMPLES");
  env(app->add_option("--seed", raw->seed, "order of samples and initial values"), "RECON_SEED");

  line->BeginGroup("Durability");
  env(app->add_option(
             "--durability", raw->durability,
             "what acknowledged pushes survive: sync (power failures), log (the death of the server) or "
             "snapshot (nothing: what came after the newest snapshot is lost)")
          ->check(CLI::IsMember({"sync", "log", "snapshot"})),
      "RECON_DURABILITY");
  env(app->add_option("--log-segment-bytes", flags->log_segment_bytes, "bytes of a file of the push log")
          ->check(CLI::Range(uint64_t{1} << 16, uint64_t{1} << 32)),
      "RECON_LOG_SEGMENT_BYTES");
  env(app->add_option(
             "--log-max-bytes", flags->log_max_bytes,
             "bytes that the push log may take on the disk; snapshots are taken early to stay below, and "
             "pushes wait where that does not help (0: half of what is free, 16 GiB at most)")
          ->check(CLI::Range(uint64_t{0}, uint64_t{1} << 50)),
      "RECON_LOG_MAX_BYTES");
  env(app->add_option("--replay-target", raw->replay_target,
                      "a snapshot is taken early when replaying the log would take longer"),
      "RECON_REPLAY_TARGET");
  line->BeginGroup("Snapshots");
  env(app->add_option("--snapshot-interval", raw->snapshot_interval,
                      "time between periodic snapshots, such as 30s"),
      "RECON_SNAPSHOT_INTERVAL");
  env(app->add_option(
             "--snapshot-memory", flags->snapshot_memory_percent,
             "memory for pages that a snapshot keeps while pushes change them, in percent of the state; "
             "with less than 100 pushes may have to wait")
          ->check(CLI::Range(1, 100)),
      "RECON_SNAPSHOT_MEMORY");
  env(app->add_option("--snapshot-keep", flags->snapshot_keep.last,
                      "newest snapshots to keep; two at least: one may be found damaged")
          ->check(CLI::Range(2, 100000)),
      "RECON_SNAPSHOT_KEEP");
  env(app->add_option("--snapshot-keep-hourly", flags->snapshot_keep.hourly,
                      "and the newest of each hour, of so many hours")
          ->check(CLI::Range(0, 100000)),
      "RECON_SNAPSHOT_KEEP_HOURLY");
  env(app->add_option("--snapshot-keep-daily", flags->snapshot_keep.daily,
                      "and the newest of each day, of so many days")
          ->check(CLI::Range(0, 100000)),
      "RECON_SNAPSHOT_KEEP_DAILY");
  env(app->add_option("--keep-best", raw->keep_best,
                      "accuracy or loss: take a snapshot after each evaluation that is the best so far, "
                      "and keep the best"),
      "RECON_KEEP_BEST");
  env(app->add_option(
             "--on-divergence", raw->on_divergence,
             "what to do when parameters are not finite or losses stay far off: ignore (say so), stop (end "
             "with 1) or rollback (go back to the last good snapshot, twice at most, then stop)")
          ->check(CLI::IsMember({"ignore", "stop", "rollback"})),
      "RECON_ON_DIVERGENCE");
  env(app->add_option("--zstd-level", flags->zstd_level,
                      "compression of snapshots: 1 (frequencies of bytes only) to 19")
          ->check(CLI::Range(1, 19)),
      "RECON_ZSTD_LEVEL");
  line->BeginGroup("Members and leases");
  env(app->add_option("--heartbeat-interval", raw->heartbeat_interval, "time between a worker's heartbeats"),
      "RECON_HEARTBEAT_INTERVAL");
  env(app->add_option("--suspect-after", raw->suspect_after,
                      "silence after which a worker is shown as suspect"),
      "RECON_SUSPECT_AFTER");
  env(app->add_option("--evict-after", raw->evict_after,
                      "silence after which nobody waits for a worker and its leases go to others"),
      "RECON_EVICT_AFTER");
  env(app->add_option(
          "--lease-duration", raw->lease_duration,
          "a lease not renewed for so long is taken back, and none of a worker that stands still is sooner"),
      "RECON_LEASE_DURATION");
  env(app->add_option(
          "--lease-target", raw->lease_target,
          "a lease has as many splits as its worker computes in so long, fewer near the end of a data epoch; "
          "0s, and with bsp, local:H and diloco:H: one"),
      "RECON_LEASE_TARGET");
  for (CLI::Option* option : app->get_options()) {
    const std::string name = option->get_name();
    // The outer optimizer's are those of the mode.
    if (option->get_group() != "General" && !absl::StartsWith(name, "--outer-")) {
      option->capture_default_str();
    }
  }
}

// And how many samples a lease has, which hangs on it.
absl::Status ConvertPolicy(const RawFlags& raw, ServerFlags* flags) {
  PolicySettings& settings = flags->policy;
  settings.set_sync(raw.sync);
  settings.set_local_steps(raw.local_steps);
  settings.set_outer_optimizer(raw.outer_optimizer);
  if (raw.outer_learning_rate != kAsSyncSays) settings.set_outer_learning_rate(raw.outer_learning_rate);
  if (raw.outer_momentum != kAsSyncSays) settings.set_outer_momentum(raw.outer_momentum);
  settings.set_staleness_correction(raw.correction);
  if (raw.auto_bound_max >= 0) settings.set_auto_bound_max(static_cast<uint32_t>(raw.auto_bound_max));
  settings.set_auto_local_steps_max(raw.auto_local_steps_max);
  settings.set_fragments(raw.fragments);
  settings.set_local_steps_by_speed(raw.local_steps_by_speed);
  settings.set_quorum(raw.quorum);
  RECON_RETURN_IF_ERROR(ParseGrace(raw.grace, &settings));
  RECON_RETURN_IF_ERROR(ParseStepSamples(raw.step_samples, &settings));
  RECON_RETURN_IF_ERROR(ParseSyncPeriods(raw.sync_periods, &settings));
  if (IsAuto(settings) && flags->servers > 1) {
    return absl::InvalidArgumentError(
        "--sync auto: the policy of a job with several servers (--servers) cannot be changed live");
  }
  const PolicyBase base = {flags->optimizer, flags->groups, raw.batch, raw.workers_min};
  RECON_ASSIGN_OR_RETURN(const Policy policy, ResolvePolicy(settings, base));
  const uint64_t round = RoundSamples(policy.job, raw.batch);
  if (round > kSplitSamplesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a round of local steps takes ", round, " samples, allowed are ", kSplitSamplesMax));
  }
  // A round ends with its lease, and between leases nothing is under way: that costs fragments their
  // advantage.
  const uint64_t rounds =
      raw.fragments > 1 ? std::min<uint64_t>(kRoundsPerSplit, kSplitSamplesMax / round) : 1;
  const uint64_t split = raw.split_samples != 0
                             ? raw.split_samples
                             : std::max({uint64_t{kSplitSamples}, rounds * round,
                                         std::min<uint64_t>(settings.step_samples(), kSplitSamplesMax)});
  flags->job.set_split_samples(static_cast<uint32_t>(split));
  flags->split_samples_by_default = raw.split_samples == 0;
  return CheckRound(settings, policy, raw.batch, flags->job.split_samples());
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

// Takes the number off --from-snapshot DIR:N. A directory of just that name is one; a port has no '/' before.
absl::Status SplitGeneration(ServerFlags* flags) {
  const std::string whole = flags->from_snapshot;
  const size_t colon = whole.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == whole.size()) return absl::OkStatus();
  const std::string number = whole.substr(colon + 1);
  const std::string directory = whole.substr(0, colon);
  const bool digits = number.find_first_not_of("0123456789") == std::string::npos;
  const size_t scheme = directory.find("://");
  const bool port = scheme != std::string::npos && directory[scheme + 3] != '/' &&
                    directory.find('/', scheme + 3) == std::string::npos;
  std::error_code error;
  if (!digits || (port && !absl::StartsWith(whole, "s3://")) || std::filesystem::is_directory(whole, error)) {
    return absl::OkStatus();
  }
  if (!absl::SimpleAtoi(number, &flags->from_generation) || flags->from_generation == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--from-snapshot ", whole, ": snapshots are numbered from 1, not ", number));
  }
  flags->from_snapshot = directory;
  return absl::OkStatus();
}

absl::Status Convert(const RawFlags& raw, ServerFlags* flags) {
  RECON_RETURN_IF_ERROR(CheckDataDirectory(flags->data));
  if (!flags->dashboard.empty()) {
    RECON_ASSIGN_OR_RETURN(flags->dashboard,
                           DashboardAddress(flags->dashboard, flags->insecure || !flags->tls_cert.empty()));
  }
  if (!flags->metrics_address.empty()) {
    RECON_ASSIGN_OR_RETURN(flags->metrics_address,
                           MetricsAddress("--metrics-address", flags->metrics_address,
                                          !flags->tls_cert.empty() || flags->insecure));
  }
  RECON_ASSIGN_OR_RETURN(flags->optimizer.kind, ParseOptimizer(raw.optimizer));
  RECON_ASSIGN_OR_RETURN(LearningRateSchedule schedule, ParseSchedule(raw.schedule));
  schedule.warmup_updates = flags->optimizer.schedule.warmup_updates;
  flags->optimizer.schedule = schedule;
  RECON_RETURN_IF_ERROR(CheckOptimizer(flags->optimizer));
  if (!raw.accept_codecs.empty()) {
    // Initial values come in FP32, and what an encoder kept back.
    uint32_t accepted = 1u << static_cast<int>(CodecId::kFp32);
    for (const absl::string_view name : absl::StrSplit(raw.accept_codecs, ',')) {
      const absl::StatusOr<CodecId> codec = ParseCodecId(name);
      if (!codec.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("--accept-codecs: ", codec.status().message()));
      }
      accepted |= 1u << static_cast<int>(*codec);
    }
    flags->job.set_refused_codecs(~accepted);
  }
  // Biases and norms, by common practice; --group overrides it.
  flags->groups["no_decay"].weight_decay_scale = 0;
  for (const std::string& group : raw.groups) RECON_RETURN_IF_ERROR(ParseGroup(group, &flags->groups));
  RECON_ASSIGN_OR_RETURN(flags->durability, ParseDurability(raw.durability));
  RECON_ASSIGN_OR_RETURN(flags->replace_after, ParseInterval("--replace-after", raw.replace_after));
  if (!absl::ParseDuration(raw.idle_timeout, &flags->idle_timeout) ||
      flags->idle_timeout != absl::ZeroDuration()) {
    RECON_ASSIGN_OR_RETURN(flags->idle_timeout, ParseInterval("--idle-timeout", raw.idle_timeout));
  }
  RECON_ASSIGN_OR_RETURN(flags->replay_target, ParseInterval("--replay-target", raw.replay_target));
  RECON_ASSIGN_OR_RETURN(flags->snapshot_interval,
                         ParseInterval("--snapshot-interval", raw.snapshot_interval));
  RECON_ASSIGN_OR_RETURN(const absl::Duration heartbeat,
                         ParseInterval("--heartbeat-interval", raw.heartbeat_interval));
  RECON_ASSIGN_OR_RETURN(flags->suspect_after, ParseInterval("--suspect-after", raw.suspect_after));
  RECON_ASSIGN_OR_RETURN(flags->evict_after, ParseInterval("--evict-after", raw.evict_after));
  RECON_ASSIGN_OR_RETURN(const absl::Duration lease, ParseInterval("--lease-duration", raw.lease_duration));
  const bool one_split = absl::ParseDuration(raw.lease_target, &flags->lease_target) &&
                         flags->lease_target == absl::ZeroDuration();
  if (!one_split) {
    RECON_ASSIGN_OR_RETURN(flags->lease_target, ParseInterval("--lease-target", raw.lease_target));
  }
  if (flags->evict_after < 2 * heartbeat || lease < 2 * heartbeat) {
    return absl::InvalidArgumentError(
        "--evict-after and --lease-duration must be at least twice --heartbeat-interval");
  }
  JobConfig& job = flags->job;
  RECON_RETURN_IF_ERROR(ConvertPolicy(raw, flags));
  job.set_seed(raw.seed);
  job.set_batch_samples(raw.batch);
  job.set_data_epochs(raw.data_epochs);
  job.set_eval_split_samples(raw.eval_split_samples);
  job.set_workers_min(raw.workers_min);
  job.set_heartbeat_interval_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(heartbeat)));
  job.set_lease_duration_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(lease)));
  if (flags->snapshot_dir.empty() && flags->join.empty()) flags->snapshot_dir = flags->data + "/snapshots";
  RECON_ASSIGN_OR_RETURN(flags->snapshot_keep.best, ParseBestBy(raw.keep_best));
  flags->on_divergence = raw.on_divergence == "stop"       ? ServerFlags::OnDivergence::kStop
                         : raw.on_divergence == "rollback" ? ServerFlags::OnDivergence::kRollback
                                                           : ServerFlags::OnDivergence::kIgnore;
  if (flags->on_divergence == ServerFlags::OnDivergence::kRollback && flags->servers > 1) {
    return absl::InvalidArgumentError(
        "--on-divergence rollback: a job with several servers (--servers) cannot go back while it runs");
  }
  RECON_RETURN_IF_ERROR(SplitGeneration(flags));
  for (const std::string& text : raw.allow) {
    const auto rule = RoleRule::Parse(text);
    if (!rule.ok()) return absl::InvalidArgumentError(absl::StrCat("--allow ", rule.status().message()));
    flags->allow.push_back(*rule);
  }
  if (!raw.allow.empty() && flags->tls_cert.empty()) {
    return absl::InvalidArgumentError("--allow is for certificates: give --tls-cert, --tls-key and --tls-ca");
  }
  for (const std::string& url : {flags->snapshot_dir, flags->from_snapshot}) {
    if (!url.empty()) RECON_RETURN_IF_ERROR(ParseStoreUrl(url).status());
  }
  if (flags->apply_threads == 0) {
    flags->apply_threads = std::clamp(UsableCores(), 1, 16);
  }
  return absl::OkStatus();
}

// What a server that joins a head may be told.
constexpr const char* kFlagsWithJoin[] = {
    "--help",         "--config",          "--listen",        "--data",     "--join",   "--advertise",
    "--snapshot-dir", "--metrics-address", "--tls-cert",      "--tls-key",  "--tls-ca", "--insecure",
    "--token-file",   "--apply-threads",   "--shared-memory", "--log-level"};

absl::Status CheckJoin(const CLI::App& app, const ServerFlags& flags) {
  if (flags.join.empty()) {
    if (!flags.token_file.empty()) {
      return absl::InvalidArgumentError(
          "--token-file is for servers that --join another; the head has --tokens");
    }
    if (flags.advertise.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("--advertise is for servers that --join another");
  }
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_name();
    const bool allowed =
        std::find(std::begin(kFlagsWithJoin), std::end(kFlagsWithJoin), name) != std::end(kFlagsWithJoin);
    if (option->count() > 0 && !allowed) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " is the head's to say, not that of a server with --join"));
    }
  }
  return absl::OkStatus();
}

// The line of `arguments`, and what is proposed. Errors in the line itself are on standard error, with
// `exit_code`; those of proposals are returned alone.
absl::StatusOr<ServerFlags> ParseLine(std::vector<std::string> arguments,
                                      const std::vector<FlagValue>& proposed, int* exit_code) {
  ServerFlags flags;
  RawFlags raw;
  CommandLine line("recon-server", "holds the model, applies gradients, hands out data, publishes snapshots");
  DefineFlags(&line, &flags, &raw);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  if (const std::optional<int> code = line.Parse(static_cast<int>(argv.size()), argv.data())) {
    *exit_code = *code;
    return absl::InvalidArgumentError("no flags");
  }
  std::vector<std::pair<std::string, std::string>> defaults;
  for (const FlagValue& flag : proposed) defaults.emplace_back(flag.name(), flag.value());
  RECON_RETURN_IF_ERROR(line.TakeDefaults(defaults, {"Optimizer", "Policy: how workers agree", "Job"}));
  absl::Status converted = Convert(raw, &flags);
  converted.Update(CheckJoin(*line.app(), flags));
  if (!converted.ok()) {
    if (proposed.empty()) *exit_code = line.Refuse(converted);
    return converted;
  }
  flags.settings = line.ValuesOf({"Optimizer", "Policy: how workers agree", "Job", "Durability", "Snapshots",
                                  "Several servers", "Members and leases"});
  flags.agreed = line.ValuesOf({"Optimizer", "Job"});
  flags.proposed = proposed;
  flags.with_proposed = [arguments = std::move(arguments)](const std::vector<FlagValue>& other) {
    int ignored = 0;
    return ParseLine(arguments, other, &ignored);
  };
  return flags;
}

}  // namespace

std::string DurabilityName(ServerFlags::Durability durability) {
  return durability == ServerFlags::Durability::kSync  ? "sync"
         : durability == ServerFlags::Durability::kLog ? "log"
                                                       : "snapshot";
}

absl::StatusOr<ServerFlags::Durability> ParseDurability(const std::string& name) {
  for (const auto durability :
       {ServerFlags::Durability::kSync, ServerFlags::Durability::kLog, ServerFlags::Durability::kSnapshot}) {
    if (name == DurabilityName(durability)) return durability;
  }
  return absl::InvalidArgumentError(absl::StrCat("--durability ", name, ": expected sync, log or snapshot"));
}

absl::StatusOr<ServerFlags> ParseServerFlags(int argc, char** argv, int* exit_code) {
  return ParseLine({argv, argv + argc}, {}, exit_code);
}

}  // namespace recon
