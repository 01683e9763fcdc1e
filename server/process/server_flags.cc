#include "server/process/server_flags.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/host_port.h"
#include "common/base/machine_limits.h"
#include "common/base/status_macros.h"
#include "common/cli/command_line.h"
#include "common/metrics/metrics.h"
#include "common/storage/store_url.h"
#include "server/process/server_flag_table.h"

namespace recon {
namespace {

constexpr uint32_t kSplitSamples = 2000;
constexpr uint64_t kRoundsPerSplit = 4;
// HOST:PORT of `text`, which may be a port alone, for loopback.
absl::StatusOr<std::string> DashboardAddress(const std::string& text, bool on_network) {
  const bool port_alone = std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::string address = port_alone && text.size() <= 5 ? LoopbackAddress(std::stoi(text)) : text;
  if (!CheckAddress("--dashboard", address).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dashboard ", text, ": expected HOST:PORT, or PORT alone for this machine only"));
  }
  if (IsLoopback(address) || on_network) return address;
  return absl::InvalidArgumentError(absl::StrCat(
      "--dashboard ", text,
      " is not loopback: everybody who reaches it can see the job. Give --tls-cert, --tls-key and "
      "--tls-ca (browsers then need a certificate of that CA), or --insecure"));
}

// The policy, and how many samples a lease has, which hangs on it.
absl::Status CheckPolicy(ServerFlags* flags) {
  const PolicySettings& settings = flags->policy;
  JobConfig& job = flags->job;
  if (IsAuto(settings) && flags->servers > 1) {
    return absl::InvalidArgumentError(
        "--sync auto: the policy of a job with several servers (--servers) cannot be changed live");
  }
  const PolicyBase base = {flags->optimizer, flags->groups, job.batch_samples(), job.workers_min()};
  RECON_ASSIGN_OR_RETURN(const Policy policy, ResolvePolicy(settings, base));
  const uint64_t round = RoundSamples(policy.job, job.batch_samples());
  if (round > kSplitSamplesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a round of local steps takes ", round, " samples, allowed are ", kSplitSamplesMax));
  }
  // A round ends with its lease, and between leases nothing is under way: that costs fragments their
  // advantage.
  const uint64_t rounds =
      settings.fragments() > 1 ? std::min<uint64_t>(kRoundsPerSplit, kSplitSamplesMax / round) : 1;
  flags->split_samples_by_default = job.split_samples() == 0;
  if (flags->split_samples_by_default) {
    const uint64_t split = std::max({uint64_t{kSplitSamples}, rounds * round,
                                     std::min<uint64_t>(settings.step_samples(), kSplitSamplesMax)});
    job.set_split_samples(static_cast<uint32_t>(split));
  }
  return CheckRound(settings, policy, job.batch_samples(), job.split_samples());
}

// Takes the number off --from-snapshot DIR:N. A directory of just that name is one; a port has no '/' before.
absl::Status SplitGeneration(ServerFlags* flags) {
  const std::string whole = flags->from_snapshot.directory;
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
  if (!absl::SimpleAtoi(number, &flags->from_snapshot.generation) || flags->from_snapshot.generation == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--from-snapshot ", whole, ": snapshots are numbered from 1, not ", number));
  }
  flags->from_snapshot.directory = directory;
  return absl::OkStatus();
}

// What flags say together; each alone is right.
absl::Status CheckTogether(ServerFlags* flags) {
  const bool on_network = flags->tls.insecure || !flags->tls.cert.empty();
  if (!flags->dashboard.empty()) {
    RECON_ASSIGN_OR_RETURN(flags->dashboard, DashboardAddress(flags->dashboard, on_network));
  }
  if (!flags->metrics_address.empty()) {
    RECON_ASSIGN_OR_RETURN(flags->metrics_address,
                           MetricsAddress("--metrics-address", flags->metrics_address, on_network));
  }
  RECON_RETURN_IF_ERROR(CheckOptimizer(flags->optimizer));
  const absl::Duration heartbeat = absl::Milliseconds(flags->job.heartbeat_interval_ms());
  const absl::Duration lease = absl::Milliseconds(flags->job.lease_duration_ms());
  if (flags->timeouts.evict_after < 2 * heartbeat || lease < 2 * heartbeat) {
    return absl::InvalidArgumentError(
        "--evict-after and --lease-duration must be at least twice --heartbeat-interval");
  }
  if (flags->idle_timeout > absl::ZeroDuration() && flags->idle_timeout < 2 * heartbeat) {
    return absl::InvalidArgumentError(
        "--idle-timeout must be at least twice --heartbeat-interval: no worker would come in time");
  }
  RECON_RETURN_IF_ERROR(CheckPolicy(flags));
  if (flags->snapshots.directory.empty() && flags->join.empty())
    flags->snapshots.directory = flags->data + "/snapshots";
  if (flags->on_divergence == ServerFlags::OnDivergence::kRollback && flags->servers > 1) {
    return absl::InvalidArgumentError(
        "--on-divergence rollback: a job with several servers (--servers) cannot go back while it runs");
  }
  RECON_RETURN_IF_ERROR(SplitGeneration(flags));
  if (!flags->access.allow.empty() && flags->tls.cert.empty()) {
    return absl::InvalidArgumentError("--allow is for certificates: give --tls-cert, --tls-key and --tls-ca");
  }
  if ((!flags->tls.crl.empty() || flags->access.names_by_certificate) && flags->tls.cert.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags->tls.crl.empty() ? "--names-by-certificate" : "--tls-crl",
                     " is for certificates: give --tls-cert, --tls-key and --tls-ca"));
  }
  for (const std::string& url : {flags->snapshots.directory, flags->from_snapshot.directory}) {
    if (!url.empty()) RECON_RETURN_IF_ERROR(ParseStoreUrl(url).status());
  }
  if (flags->apply_threads == 0) flags->apply_threads = std::clamp(UsableCores(), 1, 16);
  return absl::OkStatus();
}

// What a server that joins a head may be told.
constexpr const char* kFlagsWithJoin[] = {
    "--help",          "--config",       "--listen",          "--data",       "--join",
    "--advertise",     "--snapshot-dir", "--metrics-address", "--tls-cert",   "--tls-key",
    "--tls-ca",        "--tls-crl",      "--insecure",        "--token-file", "--apply-threads",
    "--shared-memory", "--ucx-listen",   "--log-level"};

// Of a head: one way of saying who its job's processes are.
absl::Status CheckWhoMayJoin(const ServerFlags& flags) {
  const bool certificates = !flags.tls.cert.empty();
  const bool tokens = !flags.access.tokens.empty();
  if (flags.access.open && (certificates || tokens || !flags.tls.token_file.empty())) {
    return absl::InvalidArgumentError(absl::StrCat("--open lets everybody in, ",
                                                   certificates ? "--tls-cert"
                                                   : tokens     ? "--tokens"
                                                                : "--token-file",
                                                   " does not: give one of them"));
  }
  if (!flags.tls.token_file.empty() && (certificates || tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file has the token of a job without TLS and without --tokens; this one has ",
                     certificates ? "--tls-cert" : "--tokens"));
  }
  return absl::OkStatus();
}

absl::Status CheckJoin(const CLI::App& app, const ServerFlags& flags) {
  if (flags.join.empty()) {
    RECON_RETURN_IF_ERROR(CheckWhoMayJoin(flags));
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
  const FlagTable table = ServerFlagTable(&flags);
  CommandLine line("recon-server", "holds the model, applies gradients, hands out data, publishes snapshots");
  line.AddConfigFile();
  table.AddTo(line.app());
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  if (const std::optional<int> code = line.Parse(static_cast<int>(argv.size()), argv.data())) {
    *exit_code = *code;
    return absl::InvalidArgumentError("no flags");
  }
  std::vector<std::pair<std::string, std::string>> defaults;
  for (const FlagValue& flag : proposed) defaults.emplace_back(flag.name(), flag.value());
  RECON_RETURN_IF_ERROR(line.TakeDefaults(defaults, {"Optimizer", "Policy: how workers agree", "Job"}));
  absl::Status checked = table.Take();
  if (checked.ok()) checked = CheckTogether(&flags);
  checked.Update(CheckJoin(*line.app(), flags));
  if (!checked.ok()) {
    if (proposed.empty()) *exit_code = line.Refuse(checked);
    return checked;
  }
  flags.settings.values = line.ValuesOf({"Optimizer", "Policy: how workers agree", "Job", "Durability",
                                         "Snapshots", "Several servers", "Members and leases"});
  flags.settings.agreed = line.ValuesOf({"Optimizer", "Job"});
  flags.settings.proposed = proposed;
  flags.settings.with_proposed = [arguments = std::move(arguments)](const std::vector<FlagValue>& other) {
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
