// Of ParamServer: what it holds, and refuses, so that its memory is enough.

#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "common/base/retry_hint.h"
#include "tests/server/data_plane/small_job.h"

namespace recon {

TEST_CASE("a model larger than the memory is refused with both numbers, and a smaller one then taken",
          "[param_server]") {
  Metrics metrics;
  ParamServer::Options options = ParamServerHarness::MakeOptions(kAsp, OptimizerKind::kAdam, 1, 1);
  options.memory_bytes = 8 << 20;
  ParamServer server(options, &metrics);
  ModelSpec large = SampleModel();
  large.mutable_tensors(0)->set_shape(0, 300'000);
  const absl::Status status = server.DefineModel(large);
  CHECK(absl::IsResourceExhausted(status));
  CHECK(absl::StrContains(status.message(), "the server has 8388608"));
  CHECK(server.DefineModel(SampleModel()).ok());
}

TEST_CASE("who sends more than the server may hold is told when to ask again", "[param_server]") {
  for (const int bound : {kAsp, 0}) {
    ParamServer::Options options = ParamServerHarness::MakeOptions(bound, OptimizerKind::kSgd, 1, 1);
    options.bytes_in_flight_max = 500;  // A push has more.
    ParamServerHarness harness(options);
    REQUIRE(harness.server().DefineModel(SampleModel()).ok());
    harness.Join(1);
    harness.server().AwaitInitialValues(WorkerId(1), [] {});
    const absl::Status refused =
        harness.Call(harness.MakeFrame(FrameKind::kInit, WorkerId(1), ParamServerHarness::IncarnationOf(1), 0,
                                       std::vector<float>(kSampleParams, 1)));
    CHECK_FALSE(harness.server().has_values());
    CHECK(absl::IsResourceExhausted(refused));
    CHECK(RetryAfter(refused) == limits::kOverloadRetry);
    CHECK(absl::StrContains(refused.message(), "allowed are 500"));
    CHECK(absl::StrContains(refused.message(), "synchronous") == (bound == 0));
  }
}

TEST_CASE("frames may hold half of the memory that the state leaves; then workers are told to wait",
          "[param_server]") {
  // A parameter and its momentum, in the pages of two shards.
  constexpr uint64_t kState = 2 * 2 * kPageBytes;
  constexpr uint64_t kFrames = uint64_t{20} << 20;
  ParamServer::Options options = ParamServerHarness::MakeOptions(0, OptimizerKind::kMomentum, 1, 1);
  constexpr uint32_t kWorkers = 200;
  options.memory_bytes = kState + kWorkers * limits::kRepliesBytesMax + 2 * kFrames;
  ParamServerHarness harness(options);
  harness.Define(SampleModel(), std::vector<float>(kSampleParams, 0));
  REQUIRE(harness.server().WaitUntilIdle(absl::Seconds(60)));  // The values are no longer under way.
  // A synchronous step keeps what comes until all are there.
  for (uint32_t i = 1; i <= kWorkers; ++i) harness.Join(i);
  std::vector<std::shared_ptr<ParamServerHarness::Pending>> pushes;
  uint64_t bytes = 0, held = 0;
  for (uint32_t i = 1; i <= kWorkers; ++i) {
    const ByteChain frame = EncodeFrame(harness.PushFrame(i, 0, 1));
    pushes.push_back(harness.SendBytes(frame));
    bytes += frame.size();
    if (bytes <= kFrames) held = i;
  }
  REQUIRE(held > 10);
  REQUIRE(held < kWorkers - 10);
  for (uint32_t i = 1; i <= kWorkers; ++i) {
    INFO("worker " << i << " of " << held);
    REQUIRE(Done(pushes[i - 1]) == (i > held));
    if (i > held) CHECK(RetryAfter(Await(pushes[i - 1])) == limits::kOverloadRetry);
  }
  // They count once there are no more workers than that.
  for (uint32_t i = static_cast<uint32_t>(held) + 1; i <= kWorkers; ++i)
    harness.server().members()->Expel(WorkerId(i));
  for (uint32_t i = 1; i <= held; ++i) CHECK(Await(pushes[i - 1]).ok());
}

TEST_CASE("a fast worker's pushes of synchronous steps leave room for those that close them",
          "[param_server]") {
  ParamServer::Options options = ParamServerHarness::MakeOptions(0, OptimizerKind::kSgd, 1, 1);
  options.bytes_in_flight_max = uint64_t{4} << 20;
  ParamServerHarness harness(options);
  harness.Define(SampleModel(), std::vector<float>(kSampleParams, 0));
  harness.Join(1);
  harness.Join(2);
  REQUIRE(harness.server().WaitUntilIdle(absl::Seconds(60)));
  std::vector<std::shared_ptr<ParamServerHarness::Pending>> fast;
  for (uint64_t step = 0; step < 30; ++step) fast.push_back(harness.Push(1, step, 1));
  REQUIRE(absl::IsResourceExhausted(Await(fast.back())));
  size_t held = 0;
  while (!Done(fast[held])) ++held;
  CHECK(held >= 8);   // Half of what is allowed.
  CHECK(held <= 12);  // And its share of the rest.
  for (uint64_t step = 0; step < held; ++step) CHECK(Await(harness.Push(2, step, 1)).ok());
  for (uint64_t step = 0; step < held; ++step) CHECK(Await(fast[step]).ok());
  // What was refused is taken now.
  const auto later = harness.Push(1, held, 1);
  CHECK(Await(harness.Push(2, held, 1)).ok());
  CHECK(Await(later).ok());
}

}  // namespace recon
