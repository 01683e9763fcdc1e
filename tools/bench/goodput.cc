#include "tools/bench/goodput.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/bench/simulation.h"

namespace recon {
namespace {

constexpr int kWorkers[] = {16, 256, 4096};
struct Rate {
  const char* name;
  double per_second;
};
constexpr Rate kRates[] = {
    {"none", 0}, {"1 an hour", 1.0 / 3600}, {"1 a minute", 1.0 / 60}, {"1 in 10 s", 0.1}, {"1 a second", 1}};
constexpr double kStepSeconds = 1;
constexpr uint32_t kStepsPerSplit = 4;
constexpr double kReplacementSeconds = 10;
constexpr double kRestartsSeconds = 100'000;
constexpr double kSaveSeconds = 2;
// Whoever runs all-reduce chooses the best.
constexpr double kCheckpointSeconds[] = {10, 30, 60, 300, 1800};

}  // namespace

absl::StatusOr<nlohmann::ordered_json> RunGoodput(const GoodputOptions& options) {
  nlohmann::ordered_json result = {{"bench", "goodput"},
                                   {"simulated", true},
                                   {"step_seconds", kStepSeconds},
                                   {"steps_per_lease", kStepsPerSplit},
                                   {"replacement_seconds", kReplacementSeconds},
                                   {"save_seconds", kSaveSeconds},
                                   {"table", nlohmann::ordered_json::array()}};
  for (const int workers : kWorkers) {
    if (workers > options.workers_max) continue;
    const double seconds = options.seconds * std::sqrt(static_cast<double>(kWorkers[0]) / workers);
    for (const Rate& rate : kRates) {
      double recon = 0;
      double restarts = 0;
      for (int seed = 1; seed <= options.seeds; ++seed) {
        SimulationOptions job;
        job.seed = static_cast<uint64_t>(seed);
        job.workers = workers;
        job.data_epochs = 1;
        job.steps_per_split = kStepsPerSplit;
        job.step_seconds = kStepSeconds;
        job.speed_spread = 0;
        job.splits = static_cast<uint32_t>(std::ceil(workers * seconds / (kStepsPerSplit * kStepSeconds)));
        job.kills_per_second = rate.per_second;
        job.replacement_seconds = kReplacementSeconds;
        job.heartbeat_seconds = 1;
        job.give_up_seconds = 100 * seconds;
        const SimulationResult run = Simulate(job);
        if (!run.violation.empty()) {
          return absl::InternalError(absl::StrCat("seed ", seed, ", ", workers, " workers: ", run.violation));
        }
        recon += run.goodput / options.seeds;
        double best = 0;
        for (const double checkpoint : kCheckpointSeconds) {
          best = std::max(best, SimulateRestarts(job, checkpoint, kSaveSeconds, kRestartsSeconds));
        }
        restarts += best / options.seeds;
      }
      result["table"].push_back({{"workers", workers},
                                 {"failures", rate.name},
                                 {"recon_goodput", recon},
                                 {"restarts_goodput", restarts}});
    }
  }
  return result;
}

}  // namespace recon
