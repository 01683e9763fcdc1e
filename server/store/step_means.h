#pragma once

#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "common/base/byte_chain.h"
#include "common/codec/wire_format.h"
#include "common/tensor/page.h"
#include "common/tensor/param_layout.h"
#include "server/store/kept_versions.h"
#include "server/store/lent_bytes.h"

namespace recon {

// The means that the last steps of a shard have left, for the workers that step by them (the optimizer
// `mean`): replies to their pushes, and workers that come to a step later.
//
// Threads: the shard's lane only. Memory: references to pages.
class StepMeans {
 public:
  using Pages = std::vector<PageRef>;

  explicit StepMeans(const ShardPlacement& placement) : placement_(placement) {}

  // Forgets all; from now on keeps so many. 0: none.
  void Reset(uint32_t steps) {
    kept_.Reset(steps);
    pushes_.clear();
  }
  uint32_t capacity() const { return kept_.capacity(); }
  // No step before this one is open.
  void NoteOpen(uint64_t first_open_step) { first_open_step_ = first_open_step; }
  // The mean of so many pushes; 0: it is unknown of how many. Steps ascend.
  void Keep(uint64_t step, const Pages& mean, uint32_t pushes);

  // 0 if it is unknown, or not kept any more.
  uint32_t PushesOf(uint64_t step) const;
  // The mean of a step as a payload of `codec` (fp32, fp16 or bf16), or of its sparse form where that is
  // smaller. kOpen: the step is not closed; kGone: newer ones are kept only.
  enum class Is { kHere, kOpen, kGone };
  struct Encoded {
    CodecId codec = CodecId::kFp32;
    ByteChain payload;
    uint32_t pushes = 0;
  };
  Is Encode(uint64_t step, CodecId codec, Encoded* mean);

 private:
  ByteChain Sparse(CodecId codec, const Pages& pages) const;
  ByteChain Dense(CodecId codec, const Pages& pages) const;

  const ShardPlacement placement_;
  KeptVersions kept_;                                 // By step.
  std::deque<std::pair<uint64_t, uint32_t>> pushes_;  // Of those, by step.
  uint64_t first_open_step_ = 0;
  // What was encoded last: workers of one step ask one after the other.
  LentBytes lent_;
  uint64_t lent_step_ = 0;
  CodecId lent_asked_ = CodecId::kFp32;
  CodecId lent_codec_ = CodecId::kFp32;
};

}  // namespace recon
