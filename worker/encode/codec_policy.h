#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/codec/codec_spec.h"
#include "common/tensor/param_layout.h"
#include "proto/control.pb.h"
#include "worker/encode/gradient_encoder.h"

namespace recon {

// What each push is encoded with: fixed choices, sparsity warm-up, and for groups that are "auto" what the
// server chooses for the whole job. Groups that are averaged are sent whole in FP32, whatever the choice: a
// part of how far a running mean has moved, made again later, is no mean, and a counter has no last bits to
// spare.
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
    // Each shard's residual is sent whole once in so long, one shard after the other.
    absl::Duration flush_period = absl::Seconds(60);
    bool feedback = true;  // Whether encoders keep anything back.
    int depth = 2;         // Pushes under way when the choice changes are encoded by the one before.
  };

  // `layout` must outlive the policy.
  CodecPolicy(const Options& options, const ParamLayout* layout);

  // Keeps away from the codecs that the server refuses (bit i: codec i). InvalidArgument, naming the codec,
  // if --codec has one of them, or names an averaged group with another than fp32.
  absl::Status Restrict(uint32_t refused_codecs);
  // What "auto" stands for from the next push on. What it cannot read it ignores, and says so.
  void Adopt(const CodecChoice& choice);

  // For the push that is computed `data_epochs` into the job and has the shards that are `due` (empty: all).
  // `flush_all`: with the residuals of all of them.
  EncodePlan PlanFor(double data_epochs, bool flush_all, std::vector<bool> due, absl::Time now);
  // How parameters are to be sent back.
  CodecId pull_codec() const;

  // The parts of one step, as they become known: for the sums that the server chooses codecs and policies by.
  void NoteStep(absl::Duration all, absl::Duration compute, absl::Duration stall);
  struct Exchange {
    absl::Duration encode;
    absl::Duration exchange;  // From sending to the reply.
    uint64_t push_bytes = 0;  // Payloads.
    uint64_t pull_bytes = 0;
    double share = 1;  // Of the parameters; above 0.
  };
  void NotePush(const Exchange& exchange, const EncodedPush& push);
  StepWork work() const;

  // --codec and, where it leaves a choice, the codec of each group.
  // The server chooses the codec of some group.
  bool automatic() const { return automatic_; }
  std::string Describe() const;
  // For so long, at most, a shard's residual has not been sent whole.
  absl::Duration residual_age(absl::Time now) const;

 private:
  CodecSpec SpecFor(uint32_t group) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Set in the constructor.
  const Options options_;
  const ParamLayout* const layout_;
  std::vector<CodecRules::Choice> choices_;  // One a group.
  std::vector<bool> small_;                  // Groups too small to matter to the link.
  bool automatic_ = false;

  mutable Mutex mu_;
  bool fp16_accepted_ ABSL_GUARDED_BY(mu_) = true;
  CodecChoice choice_ ABSL_GUARDED_BY(mu_);
  CodecSpec auto_push_ ABSL_GUARDED_BY(mu_);  // What choice_ says: FP16 until there is one.
  CodecId auto_pull_ ABSL_GUARDED_BY(mu_) = CodecId::kFp16;
  StepWork work_ ABSL_GUARDED_BY(mu_);
  int older_ ABSL_GUARDED_BY(mu_) = 0;  // Pushes under way when the choice changed.
  absl::Time last_flush_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  uint32_t next_flush_ ABSL_GUARDED_BY(mu_) = 0;  // Shard whose turn it is.
  // Those that have had their turn while they were not due: with their next push.
  std::vector<bool> owes_flush_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
