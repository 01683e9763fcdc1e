#include "tests/server/data_plane/frame_program.h"

#include <random>
#include <vector>

#include "catch2/catch.hpp"

namespace recon {
namespace {

constexpr int kPrograms = 100;
constexpr size_t kProgramBytesMax = 3000;

TEST_CASE("Whoever sends any frames neither changes what workers push nor stops it", "[data_plane][random]") {
  FrameProgram::Counts all;
  for (uint32_t seed = 1; seed <= kPrograms; ++seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> bytes(random() % kProgramBytesMax);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    FrameProgram program(bytes.data(), bytes.size());
    INFO("seed " << seed);
    REQUIRE(program.Run() == "");
    all.acknowledged += program.counts().acknowledged;
    all.moved += program.counts().moved;
    all.refused += program.counts().refused;
    all.taken += program.counts().taken;
    all.epochs += program.counts().epochs;
  }
  CAPTURE(all.acknowledged, all.moved, all.refused, all.taken, all.epochs);
  // They come far enough to mean something.
  CHECK(all.acknowledged > 3 * kPrograms);
  CHECK(all.moved > kPrograms / 20);
  CHECK(all.refused > 10 * kPrograms);
  CHECK(all.taken > kPrograms / 20);
  CHECK(all.epochs > kPrograms / 4);
}

}  // namespace
}  // namespace recon
