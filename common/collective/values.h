#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recon {

// Types of the values that collectives work on. Free functions, thread-safe.

enum class DType : uint8_t { kFloat32, kFloat16, kBfloat16, kFloat64, kInt32, kInt64, kUint8, kBool };
enum class ReduceOp : uint8_t { kSum, kMean, kMin, kMax, kProduct };
// How values of FP32 travel: as they are, or in 16 bits, both ways.
enum class Wire : uint8_t { kSame, kFloat16, kBfloat16 };

// By the names that NumPy and PyTorch give them; InvalidArgument with those that there are.
absl::StatusOr<DType> ParseDType(absl::string_view name);
absl::StatusOr<ReduceOp> ParseReduceOp(absl::string_view name);
absl::StatusOr<Wire> ParseWire(absl::string_view name);  // Empty: kSame.
const char* DTypeName(DType dtype);
const char* ReduceOpName(ReduceOp op);
const char* WireName(Wire wire);

size_t ItemBytes(DType dtype);
// Of a value under way.
size_t WireItemBytes(DType dtype, Wire wire);

// InvalidArgument where an operation is not defined: a mean of integers, 16 bits for what is not FP32.
absl::Status CheckReduction(ReduceOp op, DType dtype, Wire wire);

// FP32 to 16 bits, to nearest even. Unlike a codec's encoder it keeps infinities and NaNs, and what is too
// large becomes infinite: a sum must not look better than it is. `out` needs no alignment.
void NarrowTo(Wire wire, const float* values, size_t count, uint8_t* out);
// The reverse, exact.
void WidenFrom(Wire wire, const uint8_t* bytes, size_t count, float* out);

}  // namespace recon
