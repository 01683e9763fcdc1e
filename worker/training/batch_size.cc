#include "worker/training/batch_size.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace recon {

BatchSize::BatchSize(const Options& options)
    : options_(options),
      samples_(std::clamp(options.start, options.min, options.max)),
      block_(options.retry_after) {}

std::string BatchSize::MoveTo(uint32_t samples, const std::string& why) {
  const uint32_t before = samples_;
  samples_ = samples;
  window_batches_ = 0;
  window_samples_ = 0;
  window_took_ = absl::ZeroDuration();
  return absl::StrCat(before, " -> ", samples, " samples: ", why);
}

void BatchSize::Block(uint32_t limit, absl::Time now) {
  blocked_from_ = limit;
  blocked_until_ = now + block_;
  block_ = std::min(2 * block_, options_.retry_after_max);
  rate_before_ = 0;
}

std::optional<std::string> BatchSize::Note(uint64_t samples, absl::Duration took,
                                           std::optional<double> memory_used, absl::Time now) {
  ++window_batches_;
  window_samples_ += samples;
  window_took_ += took;
  if (window_batches_ < options_.batches_min || window_took_ < options_.window_min) return std::nullopt;
  const double rate = static_cast<double>(window_samples_) / absl::ToDoubleSeconds(window_took_);
  const auto of_memory = [&] {
    return absl::StrFormat("%.0f %% of the memory is in use", 100 * *memory_used);
  };
  if (memory_used && *memory_used > options_.memory_full && samples_ > options_.min) {
    Block(samples_, now);
    return MoveTo(std::max(options_.min, samples_ / 2), of_memory());
  }
  if (rate_before_ > 0 && rate <= options_.growth_min * rate_before_) {
    const std::string why = absl::StrFormat("%.0f samples/s where it were %.0f", rate, rate_before_);
    Block(samples_, now);
    return MoveTo(std::max(samples_before_, options_.min), why);
  }
  rate_before_ = 0;
  const auto twice = static_cast<uint32_t>(std::min<uint64_t>(uint64_t{2} * samples_, options_.max));
  const bool blocked = blocked_from_ > 0 && twice >= blocked_from_ && now < blocked_until_;
  const bool room = !memory_used || *memory_used <= options_.memory_room;
  if (twice > samples_ && room && !blocked) {
    rate_before_ = rate;
    samples_before_ = samples_;
    return MoveTo(twice, absl::StrFormat("%.0f samples/s, %s", rate,
                                         memory_used ? of_memory() : std::string("memory is not known")));
  }
  MoveTo(samples_, "");  // Another window.
  return std::nullopt;
}

std::optional<std::string> BatchSize::NoteOutOfMemory(absl::Time now) {
  Block(samples_, now);
  if (samples_ <= options_.min) return std::nullopt;
  return MoveTo(std::max(options_.min, samples_ / 2), "out of memory");
}

void BatchSize::SetMax(uint32_t max) {
  options_.max = std::max(1u, max);
  options_.min = std::min(options_.min, options_.max);
  if (samples_ > options_.max) {
    rate_before_ = 0;
    MoveTo(options_.max, "");
  }
}

}  // namespace recon
