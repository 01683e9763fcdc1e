#include "server/data_plane/param_server.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "tests/server/data_plane/small_job.h"

namespace recon {

TEST_CASE("an asynchronous push is applied at once and answered with the parameters", "[param_server]") {
  SmallJob f(kAsp);
  const auto push = f.Push(1, 0, 0.5f);
  REQUIRE(Await(push).ok());
  const Frame reply = *DecodeFrame(*push->reply);
  CHECK(reply.parts[0].version == 1);
  CHECK(reply.payloads[0].size() == 250 * 250 * 4);
  CHECK(f.Values(2) == std::vector<float>(kSampleParams, -0.5f));
}

TEST_CASE("a push sent twice is applied once and acknowledged twice", "[param_server]") {
  SmallJob f(kAsp);
  CHECK(Await(f.Push(1, 0, 1)).ok());
  CHECK(Await(f.Push(1, 0, 1)).ok());
  CHECK(f.Values(1)[0] == -1);
  CHECK(f.server().GetStats().duplicates == 2);
  CHECK(f.server().GetStats().pushes == 1);
}

TEST_CASE("staleness is counted for each worker", "[param_server]") {
  SmallJob f(kAsp);
  // All but the first name version 1: they are as many updates old as there were beyond it.
  const auto push = [&f](uint32_t worker, uint64_t step, uint64_t version) {
    Frame frame = f.PushFrame(worker, step, 1);
    for (PartHeader& part : frame.parts) part.version = version;
    return f.Call(frame);
  };
  CHECK(push(1, 0, 0).ok());
  for (uint64_t step = 1; step < 6; ++step) CHECK(push(1, step, 1).ok());
  CHECK(push(2, 0, 1).ok());
  // Who does not know its version, as after a restart, says 0: that is no staleness.
  CHECK(push(1, 6, 0).ok());
  f.Settle();
  const ParamServer::Stats stats = f.server().GetStats();
  const ParamServer::WorkerStats& one = stats.workers.at(WorkerId(1));
  CHECK(one.staleness_counts == std::vector<uint64_t>{2, 1, 1, 2, 0, 0, 0, 0, 0});
  CHECK(one.staleness_max == 4);
  CHECK(one.staleness_mean == Approx(10.0 / 6));
  CHECK(one.pushes == 7);
  CHECK(stats.pushes == 8);
  CHECK(stats.updates == 8);
  CHECK(stats.workers.at(WorkerId(2)).staleness_counts == std::vector<uint64_t>{0, 0, 0, 0, 1, 0, 0, 0, 0});
}

TEST_CASE("after another policy was set, staleness is not counted from the job's beginning",
          "[param_server]") {
  SmallJob f(kAsp);
  const auto push = [&f](uint64_t step, uint64_t version) {
    Frame frame = f.PushFrame(1, step, 1);
    for (PartHeader& part : frame.parts) part.version = version;
    return f.Call(frame);
  };
  for (uint64_t step = 0; step < 50; ++step) REQUIRE(push(step, step).ok());
  ApplyRules rules = f.server().rules();
  rules.cluster_epoch = SmallJob::kEpoch + 1;
  rules.correction.kind = StalenessCorrection::kInverse;
  REQUIRE(f.ChangeRules(rules).ok());
  // Workers register again. What was on its way then has no version that its worker could name.
  f.Join(1, 50);
  REQUIRE(push(50, 0).ok());
  REQUIRE(push(51, 51).ok());
  REQUIRE(push(52, 51).ok());
  f.Settle();
  CHECK(f.server().GetStats().workers.at(WorkerId(1)).staleness_max == 1);
}

TEST_CASE("a pull names the version it has, and unchanged shards are not sent", "[param_server]") {
  SmallJob f(kAsp);
  CHECK(Await(f.Push(1, 0, 1)).ok());
  Frame pull = f.MakeFrame(FrameKind::kPull, WorkerId(1), f.IncarnationOf(1), 0, {});
  pull.parts[1].version = 1;
  const auto pending = f.Send(pull);
  REQUIRE(Await(pending).ok());
  const Frame reply = *DecodeFrame(*pending->reply);
  CHECK(reply.payloads[0].size() > 0);
  CHECK(reply.payloads[1].size() == 0);
  CHECK(reply.parts[1].version == 1);
}

TEST_CASE("averaged values come back whole in fp32, whatever the codec of the reply shall be",
          "[param_server]") {
  ModelSpec model = SampleModel();
  model.mutable_tensors(1)->set_averaged(true);
  for (const int bound : {kAsp, 0}) {
    INFO("bound " << bound);
    ParamServerHarness f(bound);
    f.Define(model, std::vector<float>(kSampleParams, 2'000'001));
    f.Join(1);
    Frame push = f.PushFrame(1, 0, 1);
    Frame pull = f.MakeFrame(FrameKind::kPull, WorkerId(1), f.IncarnationOf(1), 0, {});
    for (Frame* frame : {&push, &pull}) {
      frame->header.reply_codec = static_cast<uint8_t>(CodecId::kFp16);
      const auto pending = f.Send(*frame);
      REQUIRE(Await(pending).ok());
      const Frame reply = *DecodeFrame(*pending->reply);
      CHECK(static_cast<CodecId>(reply.parts[0].codec) == CodecId::kFp16);
      CHECK(static_cast<CodecId>(reply.parts[1].codec) == CodecId::kFp32);
      CHECK(reply.parts[1].version == 1);
      const std::string bytes = reply.payloads[1].ToString();
      REQUIRE(bytes.size() == 30 * sizeof(float));
      float value;
      std::memcpy(&value, bytes.data(), sizeof(value));
      CHECK(value == 2'000'000);
    }
  }
}

TEST_CASE("a push in fp16 is worth its values times the exponent's power of two, also in a mean and a replay",
          "[param_server]") {
  for (const int bound : {kAsp, 0}) {
    INFO("bound " << bound);
    SmallJob f(bound, 1);
    Frame push = f.PushFrame(1, 0, 1.5f);
    for (const size_t part : {size_t{0}, size_t{1}}) {
      f.EncodePart(&push, part, CodecId::kFp16);
      push.parts[part].exponent = part == 0 ? -30 : 20;
    }
    CHECK(Await(f.Send(push)).ok());
    CHECK(f.Values(1).front() == -1.5f * 0x1p-30f);
    CHECK(f.Values(1).back() == -1.5f * 0x1p20f);
    SmallJob replayed(bound, 1);
    replayed.server().replay()->BeginReplay(replayed.server().rules());
    CHECK(replayed.server().replay()->ReplayFrame(7, EncodeFrame(push)).ok());
    if (bound == 0) continue;  // It waits for the record that closes its step.
    replayed.server().replay()->EndReplay();
    CHECK(replayed.Values(1).front() == -1.5f * 0x1p-30f);
  }
}

TEST_CASE("SSP lets a worker be so many steps ahead", "[param_server]") {
  SmallJob f(2);
  CHECK(Await(f.Push(1, 0, 1)).ok());
  CHECK(Await(f.Push(1, 1, 1)).ok());
  const auto waits = f.Push(1, 2, 1);
  f.Settle();
  CHECK_FALSE(Done(waits));
  CHECK(f.Values(1)[0] == -3);  // Only the reply waits.
  CHECK(Await(f.Push(2, 0, 1)).ok());
  CHECK(Await(waits).ok());
}

TEST_CASE("what a worker pushed while it took no part is not waited for again", "[param_server]") {
  SmallJob f(1);
  f.server().members()->Deactivate(WorkerId(2));
  CHECK(Await(f.Push(2, 0, 1)).ok());
  CHECK(Await(f.Push(1, 0, 1)).ok());
  CHECK(f.server().members()->Activate(WorkerId(2), 0, false) == 1);
  CHECK(Await(f.Push(2, 1, 1)).ok());
}

TEST_CASE("a waiting reply expires, and asking again goes on waiting", "[param_server]") {
  SmallJob f(0);
  const auto first = f.Push(1, 0, 2);
  f.Settle();
  f.server().Tick(Now() + absl::Minutes(1));
  CHECK(absl::IsDeadlineExceeded(Await(first)));
  const auto again = f.Push(1, 0, 2);
  CHECK(Await(f.Push(2, 0, 4)).ok());
  CHECK(Await(again).ok());
  CHECK(f.Values(1)[0] == -3);
}

TEST_CASE("draining answers what waits and refuses what comes", "[param_server]") {
  SmallJob f(0);
  const auto waiting = f.Push(1, 0, 2);
  f.Settle();
  f.server().BeginDrain();
  CHECK(absl::IsUnavailable(Await(waiting)));
  CHECK(absl::IsUnavailable(Await(f.Push(2, 0, 2))));
  CHECK(f.server().WaitUntilIdle(absl::Seconds(60)));
}

TEST_CASE("malformed pushes get the right code and change nothing", "[param_server]") {
  const bool untouched = GENERATE(false, true);  // Checked by the caller, or on a lane.
  SmallJob f(kAsp);
  const auto refused = [&](auto change, absl::StatusCode code, const std::string& word) {
    Frame frame = f.PushFrame(1, 0, 1);
    change(&frame);
    const auto pending = f.Send(frame, {Incarnation(), nullptr, /*over_request=*/false, untouched});
    const absl::Status status = Await(pending);
    INFO(status);
    CHECK(status.code() == code);
    CHECK(absl::StrContains(status.message(), word));
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  refused([&](Frame* x) { *x = f.PushFrame(1, 0, nan); }, kInvalid, "not a number");
  refused([&](Frame* x) { *x = f.PushFrame(1, 0, infinity); }, kInvalid, "infinite");
  refused([](Frame* x) { x->parts[1].shard = 7; }, kInvalid, "shard 7, the model has 2");
  refused([](Frame* x) { x->parts[1].shard = 0; }, kInvalid, "ascend");
  refused(
      [](Frame* x) {
        x->parts[1].count = 29;
        x->payloads[1] = x->payloads[1].Range(0, 29 * 4);
      },
      kInvalid, "29 values, shard 1 has 30");
  refused([](Frame* x) { x->payloads[1] = ByteChain(); }, kInvalid, "0 bytes of payload");
  refused([](Frame* x) { x->header.push_parts = 1; }, kInvalid, "push has 1 shards, this frame 2");
  refused([](Frame* x) { x->header.push_parts = 3; }, kInvalid,
          "push has 3 shards, this frame 2, the model 2");
  refused([](Frame* x) { x->header.server_parts = 1; }, kInvalid, "1 of them on this server");
  refused([&](Frame* x) { x->header.gradient_norm = nan; }, kInvalid, "norm");
  refused([](Frame* x) { x->header.gradient_norm = -1; }, kInvalid, "norm");
  refused([](Frame* x) { x->header.samples = 0; }, kInvalid, "0 samples");
  refused([](Frame* x) { x->header.step = ~uint64_t{0}; }, kInvalid, "step");
  refused([](Frame* x) { x->parts[0].version = kNoVersion; }, kInvalid, "version");
  refused([](Frame* x) { x->header.worker = 77; }, kPrecondition, "worker 77 is not registered");
  refused([](Frame* x) { x->header.incarnation = 5; }, kPrecondition, "incarnation");
  refused([](Frame* x) { x->header.cluster_epoch = 3; }, kPrecondition, "cluster epoch 3, the server's is 4");
  refused([](Frame* x) { x->header.kind = static_cast<uint8_t>(FrameKind::kPull); }, kInvalid, "of hashes");
  refused([](Frame* x) { x->header.kind = static_cast<uint8_t>(FrameKind::kReply); }, kInvalid, "kind");
  CHECK(absl::IsInvalidArgument(Await(f.SendBytes(ByteChain::FromString("nonsense")))));
  CHECK(absl::IsInvalidArgument(Await(f.SendBytes(ByteChain()))));
  CHECK(absl::IsFailedPrecondition(Await(f.Send([&] {
    Frame init = f.PushFrame(1, 0, 9);
    init.header.kind = static_cast<uint8_t>(FrameKind::kInit);
    return init;
  }()))));
  CHECK(f.Values(1) == std::vector<float>(kSampleParams, 0));
  CHECK(f.server().GetStats().pushes == 0);
}

TEST_CASE("a push need not have all shards: it is complete when it has those that it says",
          "[param_server]") {
  SmallJob f(/*bound=*/0);
  const size_t second = f.server().layout()->shards()[1].offset;
  // Both have the second shard only in step 0.
  const auto one = f.Send(f.PartOf(1, 0, 1, 2, 1));
  f.Settle();
  CHECK_FALSE(Done(one));
  const auto two = f.Send(f.PartOf(2, 0, 1, 4, 1));
  CHECK(Await(one).ok());
  CHECK(Await(two).ok());
  CHECK(f.Values(1)[0] == 0);
  CHECK(f.Values(1)[second] == -3);
  CHECK(f.server().GetStats().frontier_step == 1);
  // In step 1 one has both, in two frames, and the other the second: nobody waits for what is not to come.
  const auto first_half = f.Send(f.PartOf(1, 1, 0, 2, 2));
  f.Settle();
  CHECK_FALSE(Done(first_half));
  const auto other = f.Send(f.PartOf(2, 1, 1, 8, 1));
  CHECK(Await(first_half).ok());
  f.Settle();
  CHECK_FALSE(Done(other));
  const auto second_half = f.Send(f.PartOf(1, 1, 1, 2, 2));
  CHECK(Await(second_half).ok());
  CHECK(Await(other).ok());
  CHECK(f.Values(1)[0] == -2);
  CHECK(f.Values(1)[second] == -8);
  // Again: they count once.
  CHECK(f.Call(f.PartOf(1, 1, 0, 2, 2)).ok());
  CHECK(f.Values(1)[0] == -2);
  CHECK(f.server().GetStats().pushes == 4);
}

TEST_CASE("steps of one worker under way at once close in their order", "[param_server]") {
  SmallJob f(/*bound=*/0);
  const auto one_before = f.Send(f.PartOf(1, 0, 0, 2, 1));
  const auto one = f.Send(f.PushFrame(1, 1, 1));
  // The other's second push overtakes its first; it has that shard, too, and is not complete.
  const auto overtaking = f.Send(f.PartOf(2, 1, 0, 1, 2));
  f.Settle();
  CHECK_FALSE(Done(one_before));
  CHECK_FALSE(Done(one));
  CHECK(f.Values(1)[0] == 0);
  CHECK(f.Call(f.PartOf(2, 0, 0, 4, 1)).ok());
  CHECK(Await(one_before).ok());
  CHECK(f.Call(f.PushFrame(2, 1, 1)).ok());  // With what was missing.
  CHECK(Await(overtaking).ok());
  CHECK(Await(one).ok());
  CHECK(f.Values(1)[0] == -4);
}

TEST_CASE("a reply that would be larger than a frame may be is refused", "[param_server]") {
  ModelSpec model;
  model.set_name("large");
  TensorSpec* tensor = model.add_tensors();
  tensor->set_name("w");
  tensor->add_shape(limits::kFrameBytesMax / sizeof(float) + kShardParamsMax);
  ParamServerHarness harness(kAsp);
  REQUIRE(harness.server().DefineModel(model).ok());
  harness.Join(1);
  harness.server().AwaitInitialValues(WorkerId(1), [] {});
  const auto layout = harness.server().layout();
  for (uint32_t i = 0; i < layout->shard_count(); ++i) {
    Frame init = harness.MakeFrame(FrameKind::kInit, WorkerId(1), ParamServerHarness::IncarnationOf(1), 0,
                                   std::vector<float>(layout->params(), 1));
    init.parts = {init.parts[i]};
    init.payloads = {init.payloads[i]};
    REQUIRE(harness.Call(init).ok());
  }
  Frame pull = harness.MakeFrame(FrameKind::kPull, WorkerId(1), ParamServerHarness::IncarnationOf(1), 0, {});
  const absl::Status refused = harness.Call(pull);
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(absl::StrContains(refused.message(), "ask for fewer shards"));
  pull.header.reply_codec = static_cast<uint8_t>(CodecId::kFp16);
  CHECK(harness.Call(pull).ok());
}

TEST_CASE("clipping scales a push down to its norm, and leaves a smaller one alone", "[param_server]") {
  for (const int bound : {kAsp, 0}) {
    ParamServer::Options options = ParamServerHarness::MakeOptions(bound, OptimizerKind::kSgd, 1, 1);
    options.rules.optimizer.clip_norm = 2;
    ParamServerHarness harness(options);
    harness.Define(SampleModel(), std::vector<float>(kSampleParams, 0));
    harness.Join(1);
    Frame large = harness.PushFrame(1, 0, 1);
    large.header.gradient_norm = 8;  // What the worker measured before it encoded.
    REQUIRE(harness.Call(large).ok());
    CHECK(harness.Values(1)[0] == -0.25f);
    Frame small = harness.PushFrame(1, 1, 1);
    small.header.gradient_norm = 2;
    REQUIRE(harness.Call(small).ok());
    CHECK(harness.Values(1)[0] == -1.25f);
  }
}

TEST_CASE("many workers at once: every push counts once, in all shards", "[param_server]") {
  SmallJob f(kAsp, 4);
  std::atomic<int> refused{0};  // Assertions are for the main thread.
  std::vector<std::thread> threads;
  for (uint32_t worker = 1; worker <= 4; ++worker) {
    threads.emplace_back([&, worker] {
      for (uint64_t step = 0; step < 50; ++step) {
        const auto first = f.Push(worker, step, 1);
        const auto again = f.Push(worker, step, 1);  // Both may be under way at once.
        refused += Await(first).ok() && Await(again).ok() ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(refused == 0);
  CHECK(f.Values(1) == std::vector<float>(kSampleParams, -200));
  CHECK(f.server().GetStats().pushes == 200);
}

TEST_CASE("a cut has all or nothing of every frame, while pushes go on", "[param_server]") {
  SmallJob f(kAsp, 2);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint32_t worker = 1; worker <= 2; ++worker) {
    threads.emplace_back([&, worker] {
      for (uint64_t step = 0; !stop && Await(f.Push(worker, step, 1)).ok(); ++step) {
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    Notification taken;
    StateCut cut;
    f.server().Cut([&](StateCut state) {
      cut = std::move(state);
      taken.Notify();
    });
    taken.WaitForNotification();
    // Every push adds -1 to every parameter of both shards: twin counters.
    const float first = cut.shards[0].pages[0][0].data()[0];
    CHECK(cut.shards[0].pages[0][0].data()[250 * 250 - 1] == first);
    CHECK(cut.shards[1].pages[0][0].data()[29] == first);
    CHECK(cut.shards[0].version == cut.shards[1].version);
    CHECK(static_cast<float>(cut.shards[0].version) == -first);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("a frame of another version in the log is no damage: the start is refused", "[param_server]") {
  SmallJob job(kAsp, 1);
  std::string bytes = EncodeFrame(job.PushFrame(1, 0, 1.0f)).ToString();
  const uint16_t before = kFrameVersionMin - 1;
  std::memcpy(bytes.data() + offsetof(FrameHeader, version), &before, sizeof(before));
  job.server().replay()->BeginReplay(job.server().rules());
  const absl::Status status = job.server().replay()->ReplayFrame(7, ByteChain::FromString(bytes));
  CHECK(absl::IsFailedPrecondition(status));
  CHECK(absl::StrContains(status.message(), "record 7 of the push log has a frame of version 1"));
  CHECK(absl::StrContains(status.message(), "drain the job with the program that wrote it"));
  job.server().replay()->EndReplay();
}

namespace {

// A push whose worker says so of its gradient, in the shard of the tensor `bias` only as large.
Frame LargeBias(SmallJob* job, uint32_t worker, uint64_t step, float value, float norm) {
  std::vector<float> values(kSampleParams, 0);
  std::fill(values.end() - 30, values.end(), value);
  Frame frame =
      job->MakeFrame(FrameKind::kPushPull, WorkerId(worker), SmallJob::IncarnationOf(worker), step, values);
  frame.header.gradient_norm = norm;
  return frame;
}

}  // namespace

TEST_CASE("an update that leaves parameters that are not finite is named: worker, step and tensor",
          "[param_server]") {
  SmallJob job(kAsp);
  REQUIRE(job.Call(LargeBias(&job, 1, 0, 3e38f, 3e38f)).ok());
  CHECK_FALSE(job.server().GetStats().non_finite);
  REQUIRE(job.Call(LargeBias(&job, 2, 5, 3e38f, 3e38f)).ok());
  job.Settle();
  const std::optional<NonFiniteUpdate> found = job.server().GetStats().non_finite;
  REQUIRE(found);
  CHECK(found->worker == WorkerId(2));
  CHECK(found->step == 5);
  CHECK(found->large);
  CHECK(found->tensor == "bias");
  // It stays the first.
  REQUIRE(job.Call(LargeBias(&job, 1, 1, 3e38f, 3e38f)).ok());
  job.Settle();
  CHECK(job.server().GetStats().non_finite->step == 5);
  // A rollback goes back before it.
  job.server().replay()->BeginHistory(job.server().position().sequence, 0);
  CHECK_FALSE(job.server().GetStats().non_finite);
}

TEST_CASE("whatever a worker says of its gradient, parameters that are not finite are noticed",
          "[param_server]") {
  SmallJob job(kAsp);
  uint64_t step = 0;
  for (; step < 2; ++step) REQUIRE(job.Call(LargeBias(&job, 1, step, 3e38f, 0)).ok());
  // By the 64th update.
  for (; step < 64; ++step) {
    CHECK_FALSE(job.server().GetStats().non_finite);
    REQUIRE(job.Call(job.PushFrame(1, step, 0)).ok());
  }
  job.Settle();
  REQUIRE(job.server().GetStats().non_finite);
  CHECK(job.server().GetStats().non_finite->tensor == "bias");
  CHECK_FALSE(job.server().GetStats().non_finite->large);  // It is not the cause.
}

TEST_CASE("of a synchronous step the worker with the largest gradient is named", "[param_server]") {
  SmallJob job(0);
  for (uint64_t step = 0; step < 3; ++step) {
    const auto one = job.Send(LargeBias(&job, 1, step, 1, 1));
    const auto two = job.Send(LargeBias(&job, 2, step, 3e38f, 3e38f));
    REQUIRE(Await(one).ok());
    REQUIRE(Await(two).ok());
  }
  job.Settle();
  const std::optional<NonFiniteUpdate> found = job.server().GetStats().non_finite;
  REQUIRE(found);
  CHECK(found->worker == WorkerId(2));
  CHECK(found->step == 2);
  CHECK(found->large);
  CHECK(found->tensor == "bias");
}

}  // namespace recon
