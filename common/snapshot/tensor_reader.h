#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/tensor/param_layout.h"

namespace recon {

// One snapshot, tensor by tensor. Each chunk is read and checked once if tensors are asked for in the order
// of the layout. One thread.
class TensorReader {
 public:
  // `store` must outlive the reader. NotFound or DataLoss as SnapshotReader's.
  static absl::StatusOr<TensorReader> Open(ObjectStore* store, Generation generation);

  const Manifest& manifest() const { return manifest_; }
  const ParamLayout& layout() const { return layout_; }
  // Parameters, then the optimizer's planes.
  int roles() const { return static_cast<int>(manifest_.state_planes()) + 1; }

  // Hands out a tensor's values in order, in pieces that lie within a page each. `page` is the number of the
  // page in all of the snapshot's pages of that role.
  using Sink = absl::FunctionRef<absl::Status(uint64_t page, absl::Span<const float> values)>;
  absl::Status Read(const TensorPlacement& tensor, int role, Sink sink);

 private:
  TensorReader(ObjectStore* store, Manifest manifest, ParamLayout layout);

  SnapshotReader reader_;
  Manifest manifest_;
  ParamLayout layout_;
  std::vector<uint64_t> first_pages_;  // One a shard.
  int loaded_chunk_ = -1;
  std::vector<PageRef> pages_;
};

}  // namespace recon
