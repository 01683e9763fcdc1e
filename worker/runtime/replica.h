#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/codec/frame.h"
#include "common/tensor/page.h"
#include "common/tensor/param_layout.h"
#include "worker/model/model_backend.h"

namespace recon {

// The worker's copy of the parameters and the version it has of each shard.
//
// Threads: the training thread only.
class Replica {
 public:
  // `layout` must outlive the replica.
  explicit Replica(const ParamLayout* layout);

  ParameterView view() const { return {values_, revision_}; }
  absl::Span<float> values() { return absl::MakeSpan(values_); }
  const std::vector<uint64_t>& versions() const { return versions_; }
  bool complete() const;

  // Takes a reply's parameters, shard by shard, where they are newer than what is there. InvalidArgument if
  // the reply does not fit the layout.
  absl::Status Adopt(const Frame& reply);
  // Takes a shard's parameters from a snapshot: all of its pages.
  void TakeShard(uint32_t shard, uint64_t version, const std::vector<PageRef>& pages);
  // Forgets which versions it has: the server has gone back to a snapshot.
  void Forget();

 private:
  absl::Status AdoptValues(const PartHeader& part, const ByteChain& payload);

  const ParamLayout* layout_;
  std::vector<float> values_;
  std::vector<uint64_t> versions_;
  uint64_t revision_ = 0;
};

}  // namespace recon
