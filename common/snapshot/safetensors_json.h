#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/snapshot/safetensors.h"

namespace recon {

// The JSON of safetensors files, read as a stream: no document is built, so that neither depth nor size nor
// many names cost more than the text itself. Pure functions. DataLoss, with the name, for whatever breaks a
// rule.

// A file's header: its tensors in the order of the text, and its metadata. What each says of itself is
// complete and of the right types; sizes and offsets are for the caller to check.
absl::Status ReadSafetensorsJson(absl::string_view json, SafetensorsHeader* header);

// The index of several files ("*.safetensors.index.json"): which file has which tensor. Files are names
// without a directory.
absl::StatusOr<std::map<std::string, std::string>> ReadSafetensorsIndex(absl::string_view json);

}  // namespace recon
