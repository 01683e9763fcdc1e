#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "common/snapshot/carried_tensors.h"
#include "common/snapshot/tensor_match.h"
#include "proto/manifest.pb.h"

namespace recon {

// What an exported file says in its metadata of the model that it is of: the file's tensors have no groups
// and another order.
struct RecordedModel {
  ModelSpec model;                // Shapes are those of the file's tensors.
  std::set<std::string> carried;  // Tensors that are not trained.
  TensorAliases aliases;
};

// The metadata's member.
inline constexpr char kModelMetadata[] = "recon.model";

// `carried` may be null.
std::string EncodeRecordedModel(const ModelSpec& model, const CarriedTensors* carried);
// Nothing if the metadata have no model; DataLoss if it is none. Takes time and memory in proportion to the
// number of tensors that limits.h allows, at most.
absl::StatusOr<std::optional<RecordedModel>> ReadRecordedModel(
    const std::map<std::string, std::string>& metadata);

}  // namespace recon
