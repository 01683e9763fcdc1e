#include "tools/reconctl/encode_values.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>

#include "common/codec/half_codec.h"

namespace recon {
namespace {

template <typename T>
void AppendFloats(absl::Span<const float> values, std::string* bytes) {
  for (const float value : values) {
    const T other = static_cast<T>(value);
    bytes->append(reinterpret_cast<const char*>(&other), sizeof(other));
  }
}

template <typename T>
void AppendIntegers(absl::Span<const float> values, std::string* bytes) {
  constexpr auto low = static_cast<double>(std::numeric_limits<T>::min());
  constexpr auto high = static_cast<double>(std::numeric_limits<T>::max());
  for (const float value : values) {
    const double rounded = std::isnan(value) ? 0 : std::nearbyint(static_cast<double>(value));
    const T other = rounded <= low    ? std::numeric_limits<T>::min()
                    : rounded >= high ? std::numeric_limits<T>::max()
                                      : static_cast<T>(rounded);
    bytes->append(reinterpret_cast<const char*>(&other), sizeof(other));
  }
}

void AppendBools(absl::Span<const float> values, std::string* bytes) {
  for (const float value : values) bytes->push_back(value >= 0.5F ? '\1' : '\0');
}

template <EncodeStats (*encode)(const float*, size_t, uint8_t*)>
void AppendHalves(absl::Span<const float> values, std::string* bytes) {
  const size_t before = bytes->size();
  bytes->resize(before + 2 * values.size());
  encode(values.data(), values.size(), reinterpret_cast<uint8_t*>(bytes->data()) + before);
}

using Append = void (*)(absl::Span<const float>, std::string*);
Append AppendOf(absl::string_view dtype) {
  static const auto& all = *new std::map<absl::string_view, Append>{
      {"F32", AppendFloats<float>},      {"F64", AppendFloats<double>},
      {"F16", AppendHalves<EncodeFp16>}, {"BF16", AppendHalves<EncodeBf16>},
      {"I64", AppendIntegers<int64_t>},  {"I32", AppendIntegers<int32_t>},
      {"I16", AppendIntegers<int16_t>},  {"I8", AppendIntegers<int8_t>},
      {"U8", AppendIntegers<uint8_t>},   {"BOOL", AppendBools}};
  const auto found = all.find(dtype);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace

bool CanEncode(absl::string_view dtype) { return AppendOf(dtype) != nullptr; }

void EncodeValues(absl::string_view dtype, absl::Span<const float> values, std::string* bytes) {
  AppendOf(dtype)(values, bytes);
}

}  // namespace recon
