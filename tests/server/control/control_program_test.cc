#include "tests/server/control/control_program.h"

#include <random>
#include <vector>

#include "catch2/catch.hpp"
#include "google/protobuf/stubs/logging.h"

namespace recon {
namespace {

constexpr int kPrograms = 2000;
constexpr size_t kProgramBytesMax = 10'000;

TEST_CASE("Clients that send anything neither stop a job nor complete work that is not theirs",
          "[coordinator][random]") {
  ControlProgram::Counts all;
  // It says of each message that it is not UTF-8.
  google::protobuf::LogHandler* const handler = google::protobuf::SetLogHandler(nullptr);
  for (uint32_t seed = 1; seed <= kPrograms; ++seed) {
    std::mt19937 random(seed);
    std::vector<uint8_t> bytes(random() % kProgramBytesMax);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    ControlProgram program(bytes.data(), bytes.size());
    INFO("seed " << seed);
    CHECK(program.Run() == "");
    all.calls += program.counts().calls;
    all.granted_to_clients += program.counts().granted_to_clients;
    all.completed_by_clients += program.counts().completed_by_clients;
    all.restarts += program.counts().restarts;
    all.policies += program.counts().policies;
  }
  google::protobuf::SetLogHandler(handler);
  CAPTURE(all.calls, all.granted_to_clients, all.completed_by_clients, all.restarts, all.policies);
  // They come far enough to mean something.
  CHECK(all.granted_to_clients > kPrograms);
  CHECK(all.completed_by_clients > kPrograms / 4);
  CHECK(all.restarts > kPrograms);
  CHECK(all.policies > kPrograms);
}

}  // namespace
}  // namespace recon
