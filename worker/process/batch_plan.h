#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/control.pb.h"
#include "worker/training/batch_size.h"

namespace recon {

// How many samples are computed at once, as flags say it.
struct BatchFlags {
  bool follows_device = false;  // --batch auto; else the job's batch.
  uint32_t min = 1;
  uint32_t max = 0;                   // 0: a split.
  bool pieces_follow_device = false;  // --micro-batch auto.
  uint32_t piece_samples = 0;         // --micro-batch N; 0: the whole batch.
  BatchSize::Options tuning;          // Of what follows the device; its bounds are the plan's to say.
};

// How many samples a batch has, each of which is a push, and each piece of it, whose gradients are added up.
//
// Pure: times and figures are arguments. Threads: one at a time.
class BatchPlan {
 public:
  explicit BatchPlan(const BatchFlags& flags) : flags_(flags) {}

  // InvalidArgument, with the reason, where the job's policy leaves no choice of batches, or none within the
  // bounds.
  static absl::Status Check(const BatchFlags& flags, const JobConfig& job);

  // Of the batches of the next split. Where the policy leaves no choice, the job's.
  uint32_t NextBatch(const JobConfig& job);
  // Of the pieces of a batch of so many.
  uint32_t Piece(uint64_t batch_samples) const;
  // Something of it hangs on the device.
  bool follows() const { return flags_.follows_device || flags_.pieces_follow_device; }
  bool says() const { return follows() || flags_.piece_samples > 0; }

  // A batch of so many samples took so long, and so long to compute. `memory_used` as BatchSize has it. What
  // has changed, as lines to be logged.
  std::vector<std::string> Note(uint64_t samples, absl::Duration took, absl::Duration computing,
                                std::optional<double> memory_used, absl::Time now);
  // There was no memory for a piece of so many samples: of how many it may be tried again; none if that is
  // not to be.
  std::optional<uint32_t> OutOfMemory(uint32_t piece_samples, absl::Time now);

 private:
  const BatchFlags flags_;
  std::optional<BatchSize> batch_, pieces_;  // Of those that follow the device.
  bool chooses_ = false;                     // The policy leaves a choice now.
};

}  // namespace recon
