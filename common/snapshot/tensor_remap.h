#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/snapshot/carried_tensors.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/snapshot/tensor_match.h"
#include "common/tensor/page.h"
#include "common/tensor/param_layout.h"

namespace recon {

// What a snapshot offers to a model that may have its tensors in another order and in other groups.
std::vector<OfferedTensor> TensorsOf(const Manifest& manifest, const CarriedTensors* carried);
// What keeps its values from being that model's parameters; `carried` may be null.
std::vector<std::string> DifferencesTo(const ModelSpec& model, const Manifest& manifest,
                                       const CarriedTensors* carried);

// A snapshot's parameters as those of another layout: tensors are matched by their names. Thread-safe if the
// reader is.
class TensorRemap {
 public:
  // The references must outlive it. InvalidArgument, with all differences, if the snapshot's tensors are not
  // the layout's.
  static absl::StatusOr<TensorRemap> Create(const SnapshotReader& reader, const Manifest& manifest,
                                            std::shared_ptr<const CarriedTensors> carried,
                                            const ParamLayout& layout);

  // The pages of a shard of the layout. DataLoss as SnapshotReader's.
  absl::StatusOr<std::vector<PageRef>> ReadShard(uint32_t shard) const;

 private:
  TensorRemap(const SnapshotReader& reader, const Manifest& manifest,
              std::shared_ptr<const CarriedTensors> carried, const ParamLayout& layout, ParamLayout theirs)
      : reader_(&reader),
        manifest_(&manifest),
        carried_(std::move(carried)),
        layout_(&layout),
        theirs_(std::move(theirs)) {}

  // Small tensors lie side by side.
  struct LastRead {
    int chunk = -1;
    std::vector<PageRef> pages;
  };
  // `count` values of the snapshot, from place `from` of its flat parameters on.
  absl::Status Copy(uint64_t from, uint64_t count, float* out, LastRead* last) const;

  const SnapshotReader* reader_;
  const Manifest* manifest_;
  std::shared_ptr<const CarriedTensors> carried_;
  const ParamLayout* layout_;
  ParamLayout theirs_;
  std::vector<size_t> source_;     // For each tensor of the layout: its place in TensorsOf().
  std::vector<size_t> by_offset_;  // Tensors of the layout, as they lie.
};

}  // namespace recon
