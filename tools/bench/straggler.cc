#include "tools/bench/straggler.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "nlohmann/json.hpp"
#include "tools/bench/bench_process.h"
#include "tools/bench/median.h"

namespace recon {
namespace {

constexpr int kBatch = 32;
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kStartTimeout = absl::Seconds(30);

absl::StatusOr<uint64_t> Pushes(ControlClient* control) {
  RECON_ASSIGN_OR_RETURN(const StatusReply status, control->Status());
  return status.pushes();
}

// Samples per second of one run.
absl::StatusOr<double> MeasureOnce(const StragglerOptions& options, const std::string& sync, bool with_slow) {
  const BenchDirectory directory;
  const int workers = options.workers + (with_slow ? 1 : 0);
  std::ofstream(directory.path() + "/shapes") << "weight 256 256\nbias 256\n";
  BenchProcess server(
      {"recon-server", "--data", directory.path() + "/data", "--listen", "127.0.0.1:0", "--sync", sync,
       "--workers-min", absl::StrCat(workers), "--data-epochs", "1000", "--batch", absl::StrCat(kBatch)},
      directory.path() + "/server.log");
  std::string address;
  const absl::Time give_up = Now() + kStartTimeout;
  while (!(std::ifstream(directory.path() + "/data/ADDRESS") >> address)) {
    if (Now() > give_up) return absl::DeadlineExceededError("recon-server did not start");
    Sleep(kPoll);
  }
  std::vector<std::unique_ptr<BenchProcess>> processes;
  for (int i = 0; i < workers; ++i) {
    const bool slow = with_slow && i == options.workers;
    processes.push_back(std::make_unique<BenchProcess>(
        std::vector<std::string>{
            "recon-worker", "--server", address, "--name", absl::StrCat("w", i), "--data",
            "clusters:1000000,1,4,2", "--model", "synthetic:" + directory.path() + "/shapes", "--step-ms",
            absl::StrCat(options.step_ms), "--slow-factor", absl::StrCat(slow ? options.slow_factor : 1)},
        absl::StrCat(directory.path(), "/w", i, ".log")));
  }
  RECON_ASSIGN_OR_RETURN(const auto channel, ConnectTo(address, {}));
  ControlClient control(channel);
  // Everybody is at work before the measuring starts.
  while (true) {
    const absl::StatusOr<StatusReply> status = control.Status();
    if (status.ok() && status->members_size() == workers &&
        std::all_of(status->members().begin(), status->members().end(),
                    [](const MemberStatus& member) { return member.pushes() > 0; })) {
      break;
    }
    if (Now() > give_up) return absl::DeadlineExceededError("the workers did not start");
    Sleep(kPoll);
  }
  RECON_ASSIGN_OR_RETURN(const uint64_t before, Pushes(&control));
  const absl::Time start = Now();
  Sleep(absl::Seconds(options.seconds));
  RECON_ASSIGN_OR_RETURN(const uint64_t after, Pushes(&control));
  return static_cast<double>((after - before) * kBatch) / absl::ToDoubleSeconds(Now() - start);
}

}  // namespace

absl::StatusOr<nlohmann::ordered_json> RunStraggler(const StragglerOptions& options) {
  nlohmann::ordered_json json = {{"bench", "straggler"},       {"computing", "simulated"},
                                 {"workers", options.workers}, {"slow_factor", options.slow_factor},
                                 {"step_ms", options.step_ms}, {"rounds", options.rounds}};
  nlohmann::ordered_json ratios;
  for (const std::string sync : {"asp", "bsp"}) {
    std::vector<double> alone, with_slow, ratio;
    for (int round = 0; round < options.rounds; ++round) {
      RECON_ASSIGN_OR_RETURN(const double others, MeasureOnce(options, sync, false));
      RECON_ASSIGN_OR_RETURN(const double all, MeasureOnce(options, sync, true));
      alone.push_back(others);
      with_slow.push_back(all);
      ratio.push_back(all / others);
    }
    json[sync] = {{"others_samples_per_s", Median(alone)},
                  {"with_slow_one_samples_per_s", Median(with_slow)}};
    ratios[sync + "_with_straggler_of_others"] = Median(ratio);
  }
  json["ratios"] = ratios;
  return json;
}

}  // namespace recon
