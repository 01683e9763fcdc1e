#include "worker/model/precision.h"

#include <cmath>
#include <vector>

#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("values are rounded to the nearest that a format has, ties to even", "[precision]") {
  std::vector<float> values = {1.0f,     1.0f + 0x1p-11f, 1.0f + 0x1.8p-10f, -1.0f - 0x1p-12f,
                               0x1p-25f, 65504.0f};
  CHECK(Rounder(Precision::kFp16).Round(absl::MakeSpan(values)));
  CHECK(values == std::vector<float>{1.0f, 1.0f, 1.0f + 0x1p-9f, -1.0f, 0.0f, 65504.0f});
  values = {1.0f + 0x1p-8f, 1.0f + 0x1.8p-7f, 3e38f, 0x1p-25f};
  CHECK(Rounder(Precision::kBf16).Round(absl::MakeSpan(values)));
  CHECK(values[0] == 1.0f);
  CHECK(values[1] == 1.0f + 0x1p-6f);
  CHECK(values[2] == Approx(3e38).epsilon(0x1p-8));
  CHECK(values[3] == 0x1p-25f);
  values = {1.0f + 0x1p-20f};
  CHECK(Rounder(Precision::kFp32).Round(absl::MakeSpan(values)));
  CHECK(values[0] == 1.0f + 0x1p-20f);
}

TEST_CASE("a value that does not fit is noticed wherever it is among many", "[precision]") {
  for (const size_t at : {0u, 4095u, 4096u, 9999u}) {
    for (const float bad : {65520.0f, -1e30f, INFINITY, -INFINITY, NAN}) {
      std::vector<float> values(10'000, 0.1f);
      values[at] = bad;
      INFO(bad << " at " << at);
      CHECK_FALSE(Rounder(Precision::kFp16).Round(absl::MakeSpan(values)));
      CHECK(values[at == 0 ? 1 : 0] == Approx(0.1).epsilon(0x1p-11));
    }
  }
}

TEST_CASE("precisions have names", "[precision]") {
  for (const char* name : {"fp32", "bf16", "fp16"})
    CHECK(PrecisionName(*ParsePrecision(name)) == std::string(name));
  for (const char* name : {"", "FP16", "tf32", "fp16 "}) CHECK_FALSE(ParsePrecision(name).ok());
}

}  // namespace recon
