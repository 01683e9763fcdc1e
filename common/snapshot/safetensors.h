#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace recon {

// The safetensors file format (https://github.com/huggingface/safetensors): 8 bytes with the length of a JSON
// header, the header, and the tensors' bytes without gaps. Pure functions.

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "F16", "BF16", ...
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // Of its bytes, behind the header.
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> tensors;  // In the order of their bytes.
  std::map<std::string, std::string> metadata;
  uint64_t header_bytes = 0;  // Where the tensors' bytes begin.
};

// A name as messages show it: plain (common/base/plain_text.h), and cut where it is very long.
std::string ShownName(absl::string_view name);
// "[32,64]".
std::string ShapeText(absl::Span<const uint64_t> shape);

// Bits of a value of a type; 0 if the format has no such type.
int DtypeBits(absl::string_view dtype);

// The length that a file's first 8 bytes name; DataLoss unless a header of it fits in `file_bytes`.
absl::StatusOr<uint64_t> SafetensorsHeaderLength(absl::string_view first_bytes, uint64_t file_bytes);

// `json` is the header, `data_bytes` what follows it in the file. DataLoss, naming the tensor and the rule,
// for what the reference implementation refuses: members that are missing or unknown, duplicate names,
// unknown types, sizes that do not match shapes, holes, overlaps and bytes that belong to no tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, uint64_t data_bytes);

// The file's bytes up to the first tensor's. Entries must be as ParseSafetensorsHeader() returns them.
std::string EncodeSafetensorsHeader(const std::vector<SafetensorsEntry>& tensors,
                                    const std::map<std::string, std::string>& metadata);

}  // namespace recon
