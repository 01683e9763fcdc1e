#include "common/snapshot/safetensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/plain_text.h"
#include "common/base/status_macros.h"
#include "common/snapshot/safetensors_json.h"
#include "nlohmann/json.hpp"

namespace recon {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr uint64_t kAlignment = 8;

// Bits of an element, in the order of the reference implementation's enumeration.
struct Dtype {
  const char* name;
  int bits;
};
constexpr Dtype kDtypes[] = {
    {"BOOL", 8},    {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"U8", 8},          {"I8", 8},
    {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
    {"U16", 16},    {"F16", 16},    {"BF16", 16},   {"I32", 32},        {"U32", 32},        {"F32", 32},
    {"C64", 64},    {"F64", 64},    {"I64", 64},    {"U64", 64},
};

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("safetensors: ", what));
}

// Bytes of a tensor of that type and shape.
absl::StatusOr<uint64_t> BytesOf(const SafetensorsEntry& entry) {
  const auto width = static_cast<uint64_t>(DtypeBits(entry.dtype));
  if (width == 0) return Broken(absl::StrCat(ShownName(entry.name), ": dtype ", ShownName(entry.dtype)));
  uint64_t elements = 1;
  for (const uint64_t dimension : entry.shape) {
    if (__builtin_mul_overflow(elements, dimension, &elements))
      return Broken(ShownName(entry.name) + ": shape overflows");
  }
  uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, width, &bits))
    return Broken(ShownName(entry.name) + ": shape overflows");
  if (bits % 8 != 0)
    return Broken(absl::StrCat(ShownName(entry.name), ": ", bits, " bits are no whole number of bytes"));
  return bits / 8;
}

}  // namespace

std::string ShownName(absl::string_view name) {
  constexpr size_t kShownMax = 200;
  const std::string shown = EscapeControls(absl::Utf8SafeCEscape(name.substr(0, kShownMax)));
  if (name.size() <= kShownMax) return shown;
  return absl::StrCat(shown, "... (", name.size(), " bytes)");
}

int DtypeBits(absl::string_view dtype) {
  const auto found = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                  [&](const Dtype& known) { return dtype == known.name; });
  return found == std::end(kDtypes) ? 0 : found->bits;
}

std::string ShapeText(absl::Span<const uint64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

absl::StatusOr<uint64_t> SafetensorsHeaderLength(absl::string_view first_bytes, uint64_t file_bytes) {
  if (first_bytes.size() < kLengthBytes || file_bytes < kLengthBytes) {
    return Broken(absl::StrCat("file of ", file_bytes, " bytes"));
  }
  uint64_t length;
  std::memcpy(&length, first_bytes.data(), sizeof(length));
  if (length > kHeaderBytesMax || length > file_bytes - kLengthBytes) {
    return Broken(absl::StrCat("header of ", length, " bytes in a file of ", file_bytes, ", allowed are ",
                               kHeaderBytesMax));
  }
  return length;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json, uint64_t data_bytes) {
  if (json.empty() || json[0] != '{') return Broken("header does not begin with {");
  SafetensorsHeader header;
  RECON_RETURN_IF_ERROR(ReadSafetensorsJson(json, &header));
  header.header_bytes = kLengthBytes + json.size();
  for (const SafetensorsEntry& entry : header.tensors) {
    RECON_ASSIGN_OR_RETURN(const uint64_t bytes, BytesOf(entry));
    if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
      return Broken(absl::StrCat(ShownName(entry.name), ": offsets ", entry.begin, " to ", entry.end, " for ",
                                 bytes, " bytes"));
    }
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.begin, a.end) < std::make_pair(b.begin, b.end);
  });
  uint64_t next = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.begin != next) {
      return Broken(absl::StrCat(ShownName(entry.name), ": begins at ", entry.begin,
                                 ", the tensor before ends at ", next));
    }
    next = entry.end;
  }
  if (next != data_bytes) {
    return Broken(absl::StrCat("tensors end at ", next, ", the file's data at ", data_bytes));
  }
  return header;
}

std::string EncodeSafetensorsHeader(const std::vector<SafetensorsEntry>& tensors,
                                    const std::map<std::string, std::string>& metadata) {
  // By hand: in a document of the library, each name is looked for among all those before.
  std::vector<std::string> members;
  if (!metadata.empty()) members.push_back("\"__metadata__\":" + Json(metadata).dump());
  for (const SafetensorsEntry& entry : tensors) {
    members.push_back(absl::StrCat(Json(entry.name).dump(), ":{\"dtype\":\"", entry.dtype,
                                   "\",\"shape\":", ShapeText(entry.shape), ",\"data_offsets\":[",
                                   entry.begin, ",", entry.end, "]}"));
  }
  std::string text = absl::StrCat("{", absl::StrJoin(members, ","), "}");
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

}  // namespace recon
