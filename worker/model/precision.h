#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace recon {

// What a model computes in: parameters, activations and their gradients. Sums, and gradients of parameters,
// are FP32 in any case, and so are the parameters that the server has.
enum class Precision : uint8_t { kFp32, kBf16, kFp16 };

// "fp32", "bf16" or "fp16"; InvalidArgument for others, naming --precision.
absl::StatusOr<Precision> ParsePrecision(absl::string_view text);
const char* PrecisionName(Precision precision);

// Rounds values to those that a format has, to nearest, ties to even: what a CPU does in place of computing
// in it.
//
// Threads: one at a time. Ownership: it owns its scratch memory.
class Rounder {
 public:
  explicit Rounder(Precision precision) : precision_(precision) {}

  bool rounds() const { return precision_ != Precision::kFp32; }
  // In place. False if some value is not finite, or too large for the format; that one becomes the largest.
  bool Round(absl::Span<float> values);

 private:
  const Precision precision_;
  std::vector<uint8_t> bytes_;
};

}  // namespace recon
