#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/manifest.pb.h"

namespace recon {

// Whether a text is a model as --model names it: "mlp:SIZES", "synthetic:SHAPES", or "resnet50" and the like,
// which stand for "synthetic:resnet50".
bool NamesModel(absl::string_view name);

// Its tensors and groups. InvalidArgument or NotFound, saying what was expected.
absl::StatusOr<ModelSpec> ModelSpecOf(const std::string& name);

}  // namespace recon
