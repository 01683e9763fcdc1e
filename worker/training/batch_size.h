#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"

namespace recon {

// How many samples a worker computes at once, following what its device can: twice as many while that makes
// samples come faster and its memory has room; half as many when its memory is full, or was not enough.
//
// A size is judged by a window of batches. A doubling that brings less than a tenth is taken back. What was
// taken back, or did not fit, is tried again when some time has passed, each time twice as much.
//
// Pure: times and figures are arguments. Threads: one at a time.
class BatchSize {
 public:
  struct Options {
    // Samples; 1 <= min <= start <= max.
    uint32_t min = 1;
    uint32_t max = 1;
    uint32_t start = 1;
    // A window has so many batches at least, and takes so long: the memory in use is looked at once a second.
    uint32_t batches_min = 8;
    absl::Duration window_min = absl::Seconds(3);
    // Beyond what samples per second have to grow for a doubling to stay.
    double growth_min = 1.1;
    // Shares of the device's memory: up to which there is room for a doubling, and above which it is full.
    double memory_room = 0.8;
    double memory_full = 0.95;
    absl::Duration retry_after = absl::Minutes(1);
    absl::Duration retry_after_max = absl::Hours(1);
  };

  explicit BatchSize(const Options& options);

  uint32_t samples() const { return samples_; }

  // A batch of so many samples took so long, all that belongs to it. `memory_used`: the share of the device's
  // memory in use, by anybody; none if that is not known, and then it has room. Says why, if the size is
  // another one from now on.
  std::optional<std::string> Note(uint64_t samples, absl::Duration took, std::optional<double> memory_used,
                                  absl::Time now);
  // The device has had no memory for a batch of samples(). Says so; none if there is no smaller size.
  std::optional<std::string> NoteOutOfMemory(absl::Time now);
  // Other bounds: a new policy's, say. The size is cut to them.
  void SetMax(uint32_t max);

 private:
  std::string MoveTo(uint32_t samples, const std::string& why);
  // From now on sizes from `limit` on are not tried for a while.
  void Block(uint32_t limit, absl::Time now);

  Options options_;
  uint32_t samples_;

  // Of the window.
  uint64_t window_batches_ = 0;
  uint64_t window_samples_ = 0;
  absl::Duration window_took_;

  // Samples per second of the size before the last doubling, while that is judged; 0: none is.
  double rate_before_ = 0;
  uint32_t samples_before_ = 0;
  uint32_t blocked_from_ = 0;  // 0: nothing is.
  absl::Time blocked_until_ = absl::InfinitePast();
  absl::Duration block_;  // How long the next one lasts.
};

}  // namespace recon
