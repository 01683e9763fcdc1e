#include "common/snapshot/plane_kernels.h"

#include <cstring>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/support/simd_targets.h"

namespace recon {

TEST_CASE("planes are what the format says, on every SIMD target and for every length", "[plane_kernels]") {
  OnEverySimdTarget([] {
    for (const size_t count : {1, 15, 16, 31, 33, 64, 127, 1000}) {
      INFO(count << " values");
      std::vector<float> values(count);
      std::vector<uint8_t> expected(4 * count);
      for (size_t i = 0; i < count; ++i) {
        const uint32_t word = static_cast<uint32_t>(i + 1) * 2'654'435'761U;
        std::memcpy(&values[i], &word, sizeof(word));
        const uint32_t turned = word << 1 | word >> 31;
        for (size_t plane = 0; plane < 4; ++plane) {
          expected[plane * count + i] = static_cast<uint8_t>(turned >> (8 * plane));
        }
      }
      std::vector<char> planes(4 * count + 1, 'x');
      SplitPlanes(values.data(), count, planes.data());
      CHECK(std::memcmp(planes.data(), expected.data(), expected.size()) == 0);
      CHECK(planes.back() == 'x');
      std::vector<float> joined(count + 1, 7);
      JoinPlanes({planes.data(), planes.data() + count, planes.data() + 2 * count, planes.data() + 3 * count},
                 count, joined.data());
      CHECK(std::memcmp(joined.data(), values.data(), count * sizeof(float)) == 0);
      CHECK(joined.back() == 7);
    }
  });
}

}  // namespace recon
