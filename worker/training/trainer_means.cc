// How a worker that has the optimizer itself comes by the mean of each step.

#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/trace/span_names.h"
#include "worker/training/trainer.h"

namespace recon {
namespace {

// Between two questions for the mean of a step that others close.
constexpr absl::Duration kMeanPoll = absl::Milliseconds(10);

}  // namespace

absl::StatusOr<Trainer::MeanIs> Trainer::AwaitMean(uint64_t step) {
  mean_.Begin(step);
  RECON_RETURN_IF_ERROR(WaitUntilBelow(1));
  RECON_RETURN_IF_ERROR(Adopt(pipeline_.TakeReplies()));
  RECON_RETURN_IF_ERROR(CompleteFinishedSplits());
  RECON_RETURN_IF_ERROR(session_->fatal());
  if (mean_.complete()) return MeanIs::kHere;
  // The push went with a later step, or came to nothing: the step is closed, or will be.
  while (true) {
    RECON_ASSIGN_OR_RETURN(const MeanIs is, PullMean(step));
    if (is != MeanIs::kOpen) return is;
    const Pause mark(session_, trace::kWaitingForPushes);
    Sleep(kMeanPoll);
    if (stop_.load()) return absl::CancelledError("the worker is stopping");
    RECON_RETURN_IF_ERROR(session_->fatal());
  }
}

bool Trainer::StateWhole() const {
  std::optional<uint64_t> version;  // Each upload is one update of all of them.
  for (uint32_t i = 0; i < layout_->shard_count(); ++i) {
    if (!HoldsState(*layout_, i)) continue;
    if (version && replica_->versions()[i] != *version) return false;
    version = replica_->versions()[i];
  }
  return true;
}

absl::StatusOr<Trainer::MeanIs> Trainer::PullMean(uint64_t step) {
  RECON_ASSIGN_OR_RETURN(const std::vector<Frame> replies, pipeline_.PullMean(step));
  mean_.Begin(step);
  for (const Frame& reply : replies) RECON_RETURN_IF_ERROR(mean_.Take(reply));
  if (mean_.gone()) return MeanIs::kGone;
  return mean_.complete() ? MeanIs::kHere : MeanIs::kOpen;
}

}  // namespace recon
