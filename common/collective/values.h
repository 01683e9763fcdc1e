#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_chain.h"

namespace recon {

// Types of the values that collectives work on. Free functions, thread-safe.

enum class DType : uint8_t { kFloat32, kFloat16, kBfloat16, kFloat64, kInt32, kInt64, kUint8, kBool };
enum class ReduceOp : uint8_t { kSum, kMean, kMin, kMax, kProduct };
// How values of FP32 travel: as they are, in 16 bits, or in blocks of 8 bits with a scale each; both ways.
enum class Wire : uint8_t { kSame, kFloat16, kBfloat16, kInt8 };
// A block of kInt8 is its scale, an FP32, and a byte for each value; the last one may be shorter.
inline constexpr size_t kInt8BlockValues = 256;
inline constexpr size_t kInt8BlockBytes = sizeof(float) + kInt8BlockValues;

// By the names that NumPy and PyTorch give them; InvalidArgument with those that there are.
absl::StatusOr<DType> ParseDType(absl::string_view name);
absl::StatusOr<ReduceOp> ParseReduceOp(absl::string_view name);
absl::StatusOr<Wire> ParseWire(absl::string_view name);  // Empty: kSame.
const char* DTypeName(DType dtype);
const char* ReduceOpName(ReduceOp op);
const char* WireName(Wire wire);

size_t ItemBytes(DType dtype);
// Of so many values under way, from the beginning of a block on.
uint64_t BytesOnWire(DType dtype, Wire wire, uint64_t values);
// The reverse; none where no number of values has so many bytes.
std::optional<uint64_t> ValuesOnWire(DType dtype, Wire wire, uint64_t bytes);
// As many values as have at most so many bytes, a multiple of 64 and of whole blocks; at least one block, or
// one value.
uint64_t WireValuesIn(DType dtype, Wire wire, uint64_t bytes);

// InvalidArgument where an operation is not defined: a mean of integers, a narrow format for what is not
// FP32, 8 bits for what is neither sum nor mean.
absl::Status CheckReduction(ReduceOp op, DType dtype, Wire wire);

// FP32 to 16 bits, to nearest even, or to blocks of 8 bits as the codec int8 rounds: up or down so that the
// mean is exact, by a hash of the block's values. Unlike a codec's encoder it keeps infinities and NaNs, and
// what is too large becomes infinite: a sum must not look better than it is. A block of 8 bits with any of
// these is all NaN. `out` needs no alignment.
void NarrowTo(Wire wire, const float* values, size_t count, uint8_t* out);
// The reverse, exact.
void WidenFrom(Wire wire, const uint8_t* bytes, size_t count, float* out);
// The same of what a reader has next, in whole blocks but for the last ones that it has.
void WidenNext(Wire wire, ByteReader* reader, size_t count, float* out);

}  // namespace recon
