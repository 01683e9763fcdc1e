#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/tensor/param_layout.h"
#include "worker/encode/codec_controller.h"
#include "worker/encode/codec_spec.h"
#include "worker/encode/gradient_encoder.h"

namespace recon {

// What each push is encoded with: fixed choices, sparsity warm-up, and the controller for groups that are
// "auto".
//
// Threads: thread-safe.
class CodecPolicy {
 public:
  struct Options {
    CodecRules rules;
    CodecId pull_codec = CodecId::kFp32;
    bool pull_auto = false;
    // topk and randomk begin with a ratio of 0.25 and get to theirs, falling exponentially, after so many
    // data epochs of the job (Lin et al., "Deep Gradient Compression", ICLR 2018, section 3.3). 0 = off.
    double warmup_data_epochs = 0;
    // The residual is sent whole once in so long.
    absl::Duration flush_period = absl::Seconds(60);
  };

  // `layout` must outlive the policy.
  CodecPolicy(const Options& options, const ParamLayout* layout);

  // For the push that is computed `data_epochs` into the job.
  EncodePlan PlanFor(double data_epochs, bool flush, absl::Time now);
  // How parameters are to be sent back.
  CodecId pull_codec() const;

  // The parts of one step, as they become known. The controller gets them window by window.
  void NoteCompute(absl::Time start, absl::Duration compute, absl::Duration stall);
  void NotePush(absl::Time end, absl::Duration encode, absl::Duration exchange, uint64_t bytes,
                const EncodedPush& push);

  // --codec and, where it leaves a choice, the codec of each group.
  std::string Describe() const;
  // Why those were chosen; empty where nothing was.
  std::string Reason() const;
  // Since the residual was last sent whole.
  absl::Time last_flush() const;

 private:
  CodecSpec SpecFor(uint32_t group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Set in the constructor.
  const Options options_;
  const ParamLayout* const layout_;
  std::vector<CodecRules::Choice> choices_;  // One a group.
  std::vector<bool> small_;                  // Groups too small to matter to the link.
  bool automatic_ = false;

  mutable Mutex mu_;
  CodecController controller_ ABSL_GUARDED_BY(mu_);
  CodecController::Window window_ ABSL_GUARDED_BY(mu_);
  absl::Time window_start_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  int skip_ ABSL_GUARDED_BY(mu_) = 0;  // Pushes that were under way when the codec changed.
  absl::Time last_flush_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
};

}  // namespace recon
