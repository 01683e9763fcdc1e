#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/base/ids.h"

namespace recon {

// Notices that training goes wrong. A loss is far off when it is more than kDeviations deviations above the
// median of the last kReports losses; a deviation is 1.4826 times the median distance from it, and a tenth of
// the median at least. kFarInARow of them in a row, from whichever workers, are a divergence. Before
// kReportsMin reports nothing is judged.
//
// Threads: none of its own; the caller serializes. No clock: times are arguments, of the time of day.
class DivergenceWatch {
 public:
  static constexpr size_t kReports = 128;
  static constexpr size_t kReportsMin = 32;
  static constexpr double kDeviations = 10;
  static constexpr int kFarInARow = 8;

  struct Finding {
    std::string why;
    absl::Time since;  // Of the first sign.
  };

  // What a worker's heartbeat says: the mean loss of its last batch, and how many it has computed.
  void Report(WorkerId worker, uint64_t batches, double loss, absl::Time now);
  // A sign that is no question of degree.
  void Note(const std::string& why, absl::Time now);
  // The same of the parameters, said as long as it is so: counts once.
  void NoteUpdate(const std::string& why, absl::Time now);

  // A snapshot that was taken at `taken` has so many values that are not finite. It counts once.
  void ReportSnapshot(uint64_t generation, uint64_t non_finite_values, absl::Time taken);

  // What was found since it was asked last; and the last that Take() has returned, empty if there was none.
  std::optional<Finding> Take();
  const std::string& taken() const { return taken_; }

 private:
  double Limit() const;

  std::map<WorkerId, uint64_t> batches_;  // By the last report that was counted.
  std::deque<double> losses_;             // Not those that are far off.
  int far_in_a_row_ = 0;
  absl::Time far_since_;
  std::optional<Finding> finding_;
  std::string last_;  // Found, taken or not.
  std::string taken_;
  std::string update_;                  // As NoteUpdate() was told last.
  uint64_t non_finite_generation_ = 0;  // The last snapshot that counted.
};

}  // namespace recon
