#include "server/membership/progress_watch.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace recon {
namespace {

constexpr size_t kRemembered = 16;
constexpr size_t kKnown = 4;
// First steps compile kernels and read data.
constexpr absl::Duration kUnknown = absl::Minutes(10);
// A step may take so many times as long as the longest of usual ones, which are within so many distances.
constexpr double kLonger = 4;
constexpr double kDistances = 6;

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void ProgressWatch::Report(WorkerId worker, uint64_t steps, double seconds, absl::Time now) {
  const auto [found, added] = workers_.try_emplace(worker);
  Worker& known = found->second;
  if (added || steps < known.steps ||
      seconds < known.seconds) {  // Another process, or the first that is heard.
    known = Worker();
    known.moved_at = now;
  } else if (steps > known.steps) {
    known.recent.push_back((seconds - known.seconds) / static_cast<double>(steps - known.steps));
    if (known.recent.size() > kRemembered) known.recent.pop_front();
    known.moved_at = now;
  }
  known.steps = steps;
  known.seconds = seconds;
}

void ProgressWatch::Excuse(WorkerId worker, absl::Time now) {
  const auto found = workers_.find(worker);
  if (found != workers_.end()) found->second.moved_at = now;
}

absl::Duration ProgressWatch::Patience(WorkerId worker) const {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.recent.size() < kKnown) return kUnknown;
  const std::vector<double> recent(found->second.recent.begin(), found->second.recent.end());
  const double median = Median(recent);
  std::vector<double> distances;
  for (const double seconds : recent) distances.push_back(std::abs(seconds - median));
  return least_ + absl::Seconds(kLonger * (median + kDistances * Median(std::move(distances))));
}

bool ProgressWatch::StandsStill(WorkerId worker, absl::Time now) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && now - found->second.moved_at > Patience(worker);
}

}  // namespace recon
