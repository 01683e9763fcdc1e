#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/snapshot/safetensors.h"
#include "common/snapshot/tensor_match.h"
#include "common/storage/object_store.h"
#include "proto/manifest.pb.h"

namespace recon {

// What comes along with a job's parameters from snapshot to snapshot and is never trained: tensors (counters,
// masks, empty ones), bit by bit, and names that stand for other tensors. Held in memory, as the safetensors
// file that a pack has. Immutable; thread-safe.
class CarriedTensors {
 public:
  // Tensors with their bytes, in any order; begin and end of the entries do not count. ResourceExhausted
  // beyond limits::kCarriedBytesMax.
  static absl::StatusOr<CarriedTensors> Make(std::vector<std::pair<SafetensorsEntry, std::string>> tensors,
                                             TensorAliases aliases);
  // DataLoss unless `file` is a safetensors file.
  static absl::StatusOr<CarriedTensors> Parse(std::string file, TensorAliases aliases);

  const std::vector<SafetensorsEntry>& tensors() const { return header_.tensors; }
  absl::string_view BytesOf(const SafetensorsEntry& tensor) const;
  const TensorAliases& aliases() const { return aliases_; }

  const std::string& file() const { return file_; }
  const std::string& hash() const { return hash_; }  // XXH3-128 of the file.

 private:
  std::string file_, hash_;
  SafetensorsHeader header_;
  TensorAliases aliases_;
};

// Those of a snapshot; null if it has none. DataLoss if they are not what the manifest says.
absl::StatusOr<std::shared_ptr<const CarriedTensors>> ReadCarried(ObjectStore* store,
                                                                  const Manifest& manifest);

}  // namespace recon
