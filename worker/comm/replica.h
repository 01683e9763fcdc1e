#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/byte_chain.h"
#include "common/base/mutex.h"
#include "common/codec/codec.h"
#include "common/codec/frame.h"
#include "common/tensor/page.h"
#include "common/tensor/param_layout.h"
#include "common/tensor/parameter_view.h"

namespace recon {

// The worker's copy of the parameters, the version it has of each shard, and the cluster epoch in which these
// were counted.
//
// Threads: the training thread; EncodeShard() any.
class Replica {
 public:
  // `layout` must outlive the replica.
  explicit Replica(const ParamLayout* layout);

  ParameterView view() const { return {values_, revision_}; }
  const std::vector<uint64_t>& versions() const { return versions_; }
  uint64_t cluster_epoch() const { return cluster_epoch_; }
  bool complete() const;

  // Takes a server's parameters, shard by shard, where they are newer than what is there; of a cluster epoch
  // before, none. InvalidArgument if the reply does not fit the layout.
  absl::Status Adopt(const Frame& reply);
  // Takes a shard's parameters from a snapshot: all of its pages. The version is of that cluster epoch.
  void TakeShard(uint32_t shard, uint64_t version, uint64_t cluster_epoch, const std::vector<PageRef>& pages);
  // To be filled with initial values: it has no versions from then on.
  absl::Span<float> TakeInitialValues();

  // Takes what another worker has. No version goes with it until a server has said what of it is right: it
  // is asked with the hashes of all pages, and answers with those that are others.
  absl::Status TakeUnchecked(const Frame& reply);
  absl::Status TakeCorrections(const Frame& reply);

  // A shard as it is here, without loss.
  struct Values {
    CodecId codec = CodecId::kFp32;  // fp32, or the 16-bit one in which all of its values came.
    uint64_t version = kNoVersion;
    ByteChain payload;
  };
  // For another worker; none if there is no version of it.
  std::optional<Values> EncodeShard(uint32_t shard) const;
  // In place of the payload its pages' hashes, PageHash() of that codec. Something must have been taken.
  Values HashShard(uint32_t shard) const;

 private:
  // InvalidArgument if the layout has no such shard.
  absl::Status CheckPart(const PartHeader& part) const;
  absl::Status TakeValues(const PartHeader& part, const ByteChain& payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginEpoch(uint64_t cluster_epoch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ParamLayout* layout_;

  // Held by the training thread when it writes what follows, and by others when they read it.
  mutable Mutex mu_;
  std::vector<float> values_;  // Empty until there are some: a model may be larger than any machine.
  std::vector<uint64_t> versions_;
  std::vector<CodecId> codecs_;  // Of each shard, as Values has it.
  uint64_t cluster_epoch_ = 0;
  uint64_t revision_ = 0;
};

}  // namespace recon
