#include "server/scheduler/local_steps.h"

#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("a step's batches are shared out whole, and nobody has none", "[scheduler]") {
  for (uint64_t batches = 1; batches <= 20; ++batches) {
    for (size_t workers = 1; workers <= 20; ++workers) {
      uint64_t sum = 0;
      for (size_t rank = 0; rank < workers; ++rank) {
        const uint32_t share = BatchesOfStep(batches, workers, rank);
        CHECK(share >= std::max<uint64_t>(1, batches / workers));
        CHECK(share <= std::max<uint64_t>(1, (batches + workers - 1) / workers));
        sum += share;
      }
      CHECK(sum == std::max<uint64_t>(batches, workers));
    }
  }
}

}  // namespace recon
