#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/codec/frame.h"
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
