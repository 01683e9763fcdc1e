#include "common/base/human_bytes.h"
#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("bytes are shown in the unit that fits", "[human_bytes]") {
  CHECK(HumanBytes(0) == "0 B");
  CHECK(HumanBytes(999) == "999 B");
  CHECK(HumanBytes(1000) == "1.0 kB");
  CHECK(HumanBytes(8'130) == "8.1 kB");
  CHECK(HumanBytes(1'900'000) == "1.9 MB");
  CHECK(HumanBytes(2'500'000'000) == "2.50 GB");
}

}  // namespace recon
