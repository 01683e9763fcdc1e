#include "common/collective/values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/codec/half_codec.h"
#include "common/codec/int8_codec.h"

namespace recon {
namespace {

struct TypeRow {
  const char* name;
  size_t bytes;
};
constexpr TypeRow kTypes[] = {{"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"float64", 8},
                              {"int32", 4},   {"int64", 8},   {"uint8", 1},    {"bool", 1}};
constexpr const char* kOps[] = {"sum", "mean", "min", "max", "product"};
constexpr const char* kWires[] = {"", "float16", "bfloat16", "int8"};

bool IsFloat(DType dtype) { return dtype <= DType::kFloat64; }

// What a codec's encoder cuts: infinities, NaNs and what rounds to infinity, put right.
template <uint16_t kInfinity, uint16_t kNan>
void PutBackNonFinite(float largest, const float* values, size_t count, uint8_t* out) {
  for (size_t i = 0; i < count; ++i) {
    if (std::fabs(values[i]) < largest) continue;
    uint16_t bits = std::isnan(values[i]) ? kNan : kInfinity;
    if (std::signbit(values[i])) bits |= 0x8000;
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
}

void NarrowBlocks(const float* values, size_t count, uint8_t* out) {
  for (size_t begin = 0; begin < count; begin += kInt8BlockValues) {
    const float* const block = values + begin;
    const size_t size = std::min(kInt8BlockValues, count - begin);
    EncodeStats stats;
    float scale = Int8Scale(block, size, &stats);
    EncodeInt8Page(block, size, scale, static_cast<uint32_t>(Hash64(block, size * sizeof(float))),
                   out + sizeof(scale));
    if (stats.non_finite > 0) scale = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(out, &scale, sizeof(scale));
    out += sizeof(scale) + size;
  }
}

void WidenBlocks(const uint8_t* bytes, size_t count, float* out) {
  for (size_t begin = 0; begin < count; begin += kInt8BlockValues) {
    const size_t size = std::min(kInt8BlockValues, count - begin);
    float scale;
    std::memcpy(&scale, bytes, sizeof(scale));
    DecodeInt8(bytes + sizeof(scale), size, scale, out + begin);
    bytes += sizeof(scale) + size;
  }
}

template <typename Enum, size_t kCount>
absl::StatusOr<Enum> ParseName(const char* what, const char* const (&names)[kCount], absl::string_view name) {
  std::string all;
  for (size_t i = 0; i < kCount; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
    absl::StrAppend(&all, all.empty() ? "" : ", ", names[i]);
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown ", what, " \"", name, "\": there are ", all));
}

}  // namespace

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  std::string all;
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    if (name == kTypes[i].name) return static_cast<DType>(i);
    absl::StrAppend(&all, all.empty() ? "" : ", ", kTypes[i].name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("collectives know no values of ", name, ": there are ", all));
}
absl::StatusOr<ReduceOp> ParseReduceOp(absl::string_view name) {
  return ParseName<ReduceOp>("operation", kOps, name);
}
absl::StatusOr<Wire> ParseWire(absl::string_view name) {
  return ParseName<Wire>("wire format", kWires, name);
}
const char* DTypeName(DType dtype) { return kTypes[static_cast<size_t>(dtype)].name; }
const char* ReduceOpName(ReduceOp op) { return kOps[static_cast<size_t>(op)]; }
const char* WireName(Wire wire) { return kWires[static_cast<size_t>(wire)]; }

size_t ItemBytes(DType dtype) { return kTypes[static_cast<size_t>(dtype)].bytes; }

uint64_t BytesOnWire(DType dtype, Wire wire, uint64_t values) {
  if (wire == Wire::kInt8) {
    return values + sizeof(float) * ((values + kInt8BlockValues - 1) / kInt8BlockValues);
  }
  return values * (wire == Wire::kSame ? ItemBytes(dtype) : 2);
}

std::optional<uint64_t> ValuesOnWire(DType dtype, Wire wire, uint64_t bytes) {
  const uint64_t blocks = (bytes + kInt8BlockBytes - 1) / kInt8BlockBytes;
  const uint64_t values = wire == Wire::kInt8 ? bytes - std::min(bytes, sizeof(float) * blocks)
                                              : bytes / BytesOnWire(dtype, wire, 1);
  if (BytesOnWire(dtype, wire, values) != bytes) return std::nullopt;
  return values;
}

uint64_t WireValuesIn(DType dtype, Wire wire, uint64_t bytes) {
  if (wire == Wire::kInt8) return std::max<uint64_t>(1, bytes / kInt8BlockBytes) * kInt8BlockValues;
  return std::max<uint64_t>(1, bytes / 64 * 64 / BytesOnWire(dtype, wire, 1));
}

absl::Status CheckReduction(ReduceOp op, DType dtype, Wire wire) {
  if (op == ReduceOp::kMean && !IsFloat(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a mean of ", DTypeName(dtype), " is not a ", DTypeName(dtype), ": take the sum"));
  }
  if (wire != Wire::kSame && dtype != DType::kFloat32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "values of ", DTypeName(dtype), " travel as they are: ", WireName(wire), " is for float32"));
  }
  if (wire == Wire::kInt8 && op != ReduceOp::kSum && op != ReduceOp::kMean) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ", ReduceOpName(op), " of values in 8 bits: int8 is for sum and mean"));
  }
  return absl::OkStatus();
}

void NarrowTo(Wire wire, const float* values, size_t count, uint8_t* out) {
  RECON_CHECK(wire != Wire::kSame);
  if (wire == Wire::kInt8) return NarrowBlocks(values, count, out);
  // Halfway between the largest value and the next one, which there is not: from there on it is infinite.
  constexpr float kFp16Infinite = 65520.0F;
  constexpr float kBf16Infinite = 3.39617752923046e38F;
  const EncodeStats stats =
      wire == Wire::kFloat16 ? EncodeFp16(values, count, out) : EncodeBf16(values, count, out);
  if (stats.non_finite == 0 && stats.saturated == 0) return;
  if (wire == Wire::kFloat16) return PutBackNonFinite<0x7C00, 0x7E00>(kFp16Infinite, values, count, out);
  PutBackNonFinite<0x7F80, 0x7FC0>(kBf16Infinite, values, count, out);
}

void WidenFrom(Wire wire, const uint8_t* bytes, size_t count, float* out) {
  RECON_CHECK(wire != Wire::kSame);
  if (wire == Wire::kInt8) return WidenBlocks(bytes, count, out);
  if (wire == Wire::kFloat16) return DecodeFp16(bytes, count, out);
  DecodeBf16(bytes, count, out);
}

void WidenNext(Wire wire, ByteReader* reader, size_t count, float* out) {
  uint8_t scratch[kInt8BlockBytes];
  size_t items = 0;
  for (size_t done = 0; done < count; done += items) {
    if (wire == Wire::kInt8) {
      items = std::min(kInt8BlockValues, count - done);
      WidenBlocks(reader->Read(sizeof(float) + items, scratch), items, out + done);
    } else {
      const uint8_t* from = reader->ReadRun(2, count - done, scratch, &items);
      WidenFrom(wire, from, items, out + done);
    }
  }
}

}  // namespace recon
