#include "common/snapshot/safetensors.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kHeaderBytesMax = 100'000'000;
constexpr uint64_t kAlignment = 8;
constexpr int kDepthMax = 4;

// Bits of an element, in the order of the reference implementation's enumeration.
struct Dtype {
  const char* name;
  uint64_t bits;
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
  const auto dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                  [&](const Dtype& known) { return entry.dtype == known.name; });
  if (dtype == std::end(kDtypes)) return Broken(absl::StrCat(entry.name, ": dtype ", entry.dtype));
  uint64_t elements = 1;
  for (const uint64_t dimension : entry.shape) {
    if (__builtin_mul_overflow(elements, dimension, &elements))
      return Broken(entry.name + ": shape overflows");
  }
  uint64_t bits = 0;
  if (__builtin_mul_overflow(elements, dtype->bits, &bits)) return Broken(entry.name + ": shape overflows");
  if (bits % 8 != 0)
    return Broken(absl::StrCat(entry.name, ": ", bits, " bits are no whole number of bytes"));
  return bits / 8;
}

absl::StatusOr<Json> ParseUnique(absl::string_view json) {
  // Names that are there twice would be read differently by different readers.
  std::vector<std::set<std::string>> names;
  std::string twice;
  bool deep = false;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    deep |= depth > kDepthMax;
    if (event == Json::parse_event_t::object_start) names.emplace_back();
    if (event == Json::parse_event_t::object_end) names.pop_back();
    if (event == Json::parse_event_t::key && !names.back().insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return !deep;
  };
  Json parsed = Json::parse(json.begin(), json.end(), check, /*allow_exceptions=*/false);
  if (deep) return Broken("header is nested too deeply");
  if (parsed.is_discarded()) return Broken("header is not JSON");
  if (!parsed.is_object()) return Broken("header is not a JSON object");
  if (!twice.empty()) return Broken(absl::StrCat("\"", twice, "\" is there twice"));
  return parsed;
}

absl::StatusOr<SafetensorsEntry> ParseEntry(const std::string& name, const Json& json) {
  SafetensorsEntry entry;
  entry.name = name;
  if (!json.is_object() || json.size() != 3 || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets")) {
    return Broken(name + ": expected dtype, shape and data_offsets");
  }
  const Json& offsets = json["data_offsets"];
  const auto unsigned_list = [](const Json& list) {
    return list.is_array() &&
           std::all_of(list.begin(), list.end(), [](const Json& item) { return item.is_number_unsigned(); });
  };
  if (!json["dtype"].is_string() || !unsigned_list(json["shape"]) || !unsigned_list(offsets) ||
      offsets.size() != 2) {
    return Broken(name + ": dtype, shape or data_offsets is not of its type");
  }
  entry.dtype = json["dtype"].get<std::string>();
  entry.shape = json["shape"].get<std::vector<uint64_t>>();
  entry.begin = offsets[0].get<uint64_t>();
  entry.end = offsets[1].get<uint64_t>();
  return entry;
}

}  // namespace

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
  RECON_ASSIGN_OR_RETURN(const Json parsed, ParseUnique(json));
  SafetensorsHeader header;
  header.header_bytes = kLengthBytes + json.size();
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return Broken("__metadata__ is not an object");
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) return Broken(absl::StrCat("__metadata__: ", key, " is not a string"));
        header.metadata[key] = text.get<std::string>();
      }
      continue;
    }
    RECON_ASSIGN_OR_RETURN(SafetensorsEntry entry, ParseEntry(name, value));
    RECON_ASSIGN_OR_RETURN(const uint64_t bytes, BytesOf(entry));
    if (entry.begin > entry.end || entry.end - entry.begin != bytes) {
      return Broken(
          absl::StrCat(name, ": offsets ", entry.begin, " to ", entry.end, " for ", bytes, " bytes"));
    }
    header.tensors.push_back(std::move(entry));
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::make_pair(a.begin, a.end) < std::make_pair(b.begin, b.end);
  });
  uint64_t next = 0;
  for (const SafetensorsEntry& entry : header.tensors) {
    if (entry.begin != next) {
      return Broken(
          absl::StrCat(entry.name, ": begins at ", entry.begin, ", the tensor before ends at ", next));
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
  Json json = Json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  for (const SafetensorsEntry& entry : tensors) {
    json[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = json.dump();
  text.resize((text.size() + kAlignment - 1) / kAlignment * kAlignment, ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
}

}  // namespace recon
