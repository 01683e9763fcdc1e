#include "worker/process/batch_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace recon {

absl::Status BatchPlan::Check(const BatchFlags& flags, const JobConfig& job) {
  if (!flags.follows_device) return absl::OkStatus();
  constexpr char kInstead[] = "; --micro-batch auto follows the device and leaves batches as they are";
  if (job.bound() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch auto: the job is synchronous (bsp, local:H, diloco:H), and what a step is made "
                     "of must not hang on "
                     "how fast each worker is",
                     kInstead));
  }
  if (job.has_local()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch auto: the job has local steps, whose rate and number are for batches of ",
                     job.batch_samples(), " samples", kInstead));
  }
  if (flags.min > job.split_samples()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--batch-min ", flags.min, ": a batch is of one split, which has ", job.split_samples(), " samples"));
  }
  return absl::OkStatus();
}

uint32_t BatchPlan::NextBatch(const JobConfig& job) {
  uint32_t samples = job.batch_samples();
  chooses_ = flags_.follows_device && Check(flags_, job).ok();
  if (chooses_) {
    BatchSize::Options options = flags_.tuning;
    options.min = flags_.min;
    options.max = flags_.max == 0 ? job.split_samples() : std::min(flags_.max, job.split_samples());
    options.start = samples;
    if (!batch_) batch_.emplace(options);
    batch_->SetMax(options.max);
    samples = batch_->samples();
  }
  if (flags_.pieces_follow_device) {
    BatchSize::Options options = flags_.tuning;
    options.max = options.start = samples;
    if (!pieces_) pieces_.emplace(options);
    pieces_->SetMax(samples);
  }
  return samples;
}

uint32_t BatchPlan::Piece(uint64_t batch_samples) const {
  uint64_t piece = batch_samples;
  if (flags_.piece_samples > 0) piece = std::min<uint64_t>(piece, flags_.piece_samples);
  if (pieces_) piece = std::min<uint64_t>(piece, pieces_->samples());
  return static_cast<uint32_t>(piece);
}

std::vector<std::string> BatchPlan::Note(uint64_t samples, absl::Duration took, absl::Duration computing,
                                         std::optional<double> memory_used, absl::Time now) {
  std::vector<std::string> lines;
  // The last of a split may be shorter, and tells of another size.
  const bool whole = !chooses_ || samples == batch_->samples();
  if (pieces_ && whole) {
    if (const auto why = pieces_->Note(samples, computing, memory_used, now)) {
      lines.push_back(absl::StrCat("pieces of batches: ", *why));
    }
  }
  if (chooses_ && whole) {
    // What pieces need is their own affair.
    const std::optional<double> of_batch = pieces_ ? std::nullopt : memory_used;
    if (const auto why = batch_->Note(samples, took, of_batch, now)) {
      lines.push_back(absl::StrCat("batches: ", *why));
    }
  }
  return lines;
}

std::optional<uint32_t> BatchPlan::OutOfMemory(uint32_t piece_samples, absl::Time now) {
  if (pieces_) {
    (void)pieces_->NoteOutOfMemory(now);
  } else if (chooses_) {
    (void)batch_->NoteOutOfMemory(now);
  } else {
    return std::nullopt;
  }
  if (piece_samples <= 1) return std::nullopt;
  return std::min(piece_samples / 2, pieces_ ? pieces_->samples() : piece_samples);
}

}  // namespace recon
