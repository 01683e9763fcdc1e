#include "server/membership/progress_watch.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/check.h"

namespace recon {
namespace {

constexpr size_t kRemembered = 16;
constexpr size_t kKnown = 4;
// The first compile kernels and read data.
constexpr absl::Duration kUnknown = absl::Minutes(10);
// A batch may take so many times as long as the longest of usual ones, which are within so many distances.
constexpr double kLonger = 4;
constexpr double kDistances = 6;

double Median(std::vector<double> values) {
  RECON_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

void ProgressWatch::Report(WorkerId worker, uint64_t batches, absl::Time now) {
  const auto [found, added] = workers_.try_emplace(worker);
  Worker& known = found->second;
  if (added || batches < known.batches) {  // The first that is heard, or another process.
    known = Worker();
    known.moved_at = known.expected_since = known.trusted_since = now;
  } else if (batches > known.batches) {
    const double seconds = absl::ToDoubleSeconds(now - known.moved_at);
    known.recent.push_back(seconds / static_cast<double>(batches - known.batches));
    if (known.recent.size() > kRemembered) known.recent.pop_front();
    known.moved_at = known.expected_since = known.trusted_since = now;
  }
  known.batches = batches;
}

void ProgressWatch::Excuse(WorkerId worker, absl::Time now) {
  const auto found = workers_.find(worker);
  if (found != workers_.end()) found->second.expected_since = found->second.trusted_since = now;
}

void ProgressWatch::ExcuseByWord(WorkerId worker, absl::Time now) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || now - found->second.trusted_since > kWordMax) return;
  found->second.expected_since = now;
}

void ProgressWatch::ExcuseAll(absl::Time now) {
  for (auto& [id, worker] : workers_) worker.expected_since = worker.trusted_since = now;
}

absl::Duration ProgressWatch::Patience(WorkerId worker, bool others_wait) const {
  const auto found = workers_.find(worker);
  if (found != workers_.end()) {
    if (const auto own = OwnPatience(found->second)) return *own;
  }
  if (!others_wait) return kUnknown;
  absl::Duration longest;
  for (const auto& [id, other] : workers_) longest = std::max(longest, OwnPatience(other).value_or(longest));
  return longest > absl::ZeroDuration() ? std::min(kUnknown, 2 * longest) : kUnknown;
}

std::optional<absl::Duration> ProgressWatch::OwnPatience(const Worker& worker) const {
  if (worker.recent.size() < kKnown) return std::nullopt;
  const std::vector<double> recent(worker.recent.begin(), worker.recent.end());
  const double median = Median(recent);
  std::vector<double> distances;
  for (const double seconds : recent) distances.push_back(std::abs(seconds - median));
  return least_ + absl::Seconds(kLonger * (median + kDistances * Median(std::move(distances))));
}

bool ProgressWatch::Late(WorkerId worker, absl::Time now) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && now - found->second.expected_since > least_;
}

bool ProgressWatch::StandsStill(WorkerId worker, bool others_wait, absl::Time now) const {
  const auto found = workers_.find(worker);
  return found != workers_.end() && now - found->second.expected_since > Patience(worker, others_wait);
}

}  // namespace recon
