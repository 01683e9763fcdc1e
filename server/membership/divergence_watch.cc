#include "server/membership/divergence_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace recon {
namespace {

// Makes the median distance from the median of normally distributed values their standard deviation.
constexpr double kOfNormal = 1.4826;
constexpr double kOfMedianMin = 0.1;

double Median(std::vector<double> values) {
  RECON_CHECK(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double DivergenceWatch::Limit() const {
  const double median = Median({losses_.begin(), losses_.end()});
  std::vector<double> distances;
  for (const double loss : losses_) distances.push_back(std::abs(loss - median));
  const double deviation =
      std::max(kOfNormal * Median(std::move(distances)), kOfMedianMin * std::abs(median));
  return median + kDeviations * deviation;
}

void DivergenceWatch::Report(WorkerId worker, uint64_t batches, double loss, absl::Time now) {
  uint64_t& counted = batches_[worker];
  if (batches == counted) return;  // Nothing new.
  counted = batches;
  if (!std::isfinite(loss))
    return Note(absl::StrCat("worker ", worker.value(), " reports a loss of ", loss), now);
  const double limit = losses_.size() < kReportsMin ? loss : Limit();
  if (loss <= limit) {
    far_in_a_row_ = 0;
    losses_.push_back(loss);
    if (losses_.size() > kReports) losses_.pop_front();
    return;
  }
  if (far_in_a_row_++ == 0) far_since_ = now;
  if (far_in_a_row_ < kFarInARow) return;
  Note(absl::StrCat("the last ", kFarInARow, " losses that workers report are above ", limit,
                    ", the last is ", loss, ", usual are ", Median({losses_.begin(), losses_.end()})),
       far_since_);
  // Whoever goes on regardless has other losses from now on.
  losses_.clear();
  far_in_a_row_ = 0;
}

void DivergenceWatch::Note(const std::string& why, absl::Time now) {
  if (finding_ || why == last_) return;
  last_ = why;
  finding_ = Finding{why, now};
}

void DivergenceWatch::NoteUpdate(const std::string& why, absl::Time now) {
  if (std::exchange(update_, why) != why) Note(why, now);
}

void DivergenceWatch::ReportSnapshot(uint64_t generation, uint64_t non_finite_values, absl::Time taken) {
  if (non_finite_values == 0 || generation == non_finite_generation_) return;
  non_finite_generation_ = generation;
  Note(absl::StrCat("snapshot ", generation, " has ", non_finite_values, " values that are not finite"),
       taken);
}

std::optional<DivergenceWatch::Finding> DivergenceWatch::Take() {
  if (finding_) taken_ = finding_->why;
  return std::exchange(finding_, std::nullopt);
}

}  // namespace recon
