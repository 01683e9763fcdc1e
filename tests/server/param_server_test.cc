#include "server/param_server.h"

#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "common/base/retry_hint.h"
#include "tests/server/durability/sample_state.h"
#include "tests/server/push_frames.h"

namespace recon {
namespace {

constexpr int kAsp = StalenessGate::kUnlimited;
constexpr size_t kParams = 250 * 250 + 30;

struct Fixture : ParamServerHarness {
  explicit Fixture(int bound, int workers = 2) : ParamServerHarness(bound) {
    Define(SampleModel(), std::vector<float>(kParams, 0));
    for (int i = 1; i <= workers; ++i) Join(static_cast<uint32_t>(i));
  }
  // One shard's part of a push that has `parts` of the two.
  Frame PartOf(uint32_t worker, uint64_t step, uint32_t shard, float value, uint32_t parts) {
    Frame frame = PushFrame(worker, step, value);
    frame.parts = {frame.parts[shard]};
    frame.payloads = {frame.payloads[shard]};
    frame.header.push_parts = parts;
    if (parts == 1) frame.header.server_parts = 1;
    return frame;
  }
  // After everything the lanes were given.
  void Settle() { Values(1); }
};

bool Done(const std::shared_ptr<ParamServerHarness::Pending>& pending) {
  return pending->done.HasBeenNotified();
}

absl::Status Await(const std::shared_ptr<ParamServerHarness::Pending>& pending) {
  pending->done.WaitForNotification();
  return pending->reply.status();
}

}  // namespace

TEST_CASE("an asynchronous push is applied at once and answered with the parameters", "[param_server]") {
  Fixture f(kAsp);
  const auto push = f.Push(1, 0, 0.5f);
  REQUIRE(Await(push).ok());
  const Frame reply = *DecodeFrame(*push->reply);
  CHECK(reply.parts[0].version == 1);
  CHECK(reply.payloads[0].size() == 250 * 250 * 4);
  CHECK(f.Values(2) == std::vector<float>(kParams, -0.5f));
}

TEST_CASE("a push sent twice is applied once and acknowledged twice", "[param_server]") {
  Fixture f(kAsp);
  CHECK(Await(f.Push(1, 0, 1)).ok());
  CHECK(Await(f.Push(1, 0, 1)).ok());
  CHECK(f.Values(1)[0] == -1);
  CHECK(f.server().GetStats().duplicates == 2);
  CHECK(f.server().GetStats().pushes == 1);
}

TEST_CASE("staleness is counted for each worker", "[param_server]") {
  Fixture f(kAsp);
  // All name version 0: their gradients are as many updates old as there were before.
  for (uint64_t step = 0; step < 6; ++step) CHECK(Await(f.Push(1, step, 1)).ok());
  CHECK(Await(f.Push(2, 0, 1)).ok());
  f.Settle();
  const ParamServer::Stats stats = f.server().GetStats();
  const ParamServer::WorkerStats& one = stats.workers.at(WorkerId(1));
  CHECK(one.staleness_counts == std::vector<uint64_t>{1, 1, 1, 2, 1, 0, 0, 0, 0});
  CHECK(one.staleness_max == 5);
  CHECK(one.staleness_mean == 2.5);
  CHECK(stats.workers.at(WorkerId(2)).staleness_counts == std::vector<uint64_t>{0, 0, 0, 0, 1, 0, 0, 0, 0});
}

TEST_CASE("a pull names the version it has, and unchanged shards are not sent", "[param_server]") {
  Fixture f(kAsp);
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

TEST_CASE("BSP answers when all have pushed, with the mean applied", "[param_server]") {
  Fixture f(0, 3);
  const auto one = f.Push(1, 0, 3);
  const auto two = f.Push(2, 0, 6);
  f.Settle();
  CHECK_FALSE(Done(one));
  CHECK(f.Values(1)[0] == 0);
  const auto three = f.Push(3, 0, 0);
  CHECK(Await(one).ok());
  CHECK(Await(two).ok());
  CHECK(Await(three).ok());
  CHECK(f.Values(1) == std::vector<float>(kParams, -3));
}

TEST_CASE("BSP goes on without a worker that is expelled: shards it had reached count it, others do not",
          "[param_server]") {
  Fixture f(0);
  Frame half = f.PushFrame(2, 0, 100);
  half.parts.pop_back();
  half.payloads.pop_back();
  const auto unfinished = f.Send(half);
  const auto one = f.Push(1, 0, 3);
  f.Settle();
  CHECK_FALSE(Done(one));
  f.server().Expel(WorkerId(2));
  CHECK(Await(one).ok());
  const std::vector<float> values = f.Values(1);
  CHECK(values.front() == -(3 + 100) / 2.0f);
  CHECK(values.back() == -3);
  // Back again, it is told that its push came too late, and takes part from the next step.
  f.server().Admit(WorkerId(2), f.IncarnationOf(2), 0);
  CHECK(absl::IsAborted(Await(f.Push(2, 0, 100))));
  CHECK(f.server().Activate(WorkerId(2), 0) == 1);
  const auto next = f.Push(1, 1, 1);
  CHECK(Await(f.Push(2, 1, 1)).ok());
  CHECK(Await(next).ok());
  CHECK(f.Values(1).back() == -4);
}

TEST_CASE("BSP: the reply of a frame comes when all have sent its shards, not all of theirs",
          "[param_server]") {
  Fixture f(0);
  const auto first_shard = [&](uint32_t worker, float value) {
    Frame frame = f.PushFrame(worker, 0, value);
    frame.parts.resize(1);
    frame.payloads.resize(1);
    return frame;
  };
  const auto one = f.Send(first_shard(1, 3));
  f.Settle();
  CHECK_FALSE(Done(one));
  const auto two = f.Send(first_shard(2, 5));
  CHECK(Await(one).ok());
  CHECK(Await(two).ok());
  CHECK(f.Values(1).front() == -4);
  CHECK(f.Values(1).back() == 0);
  // The rest, with what has been sent already.
  const auto rest = f.Push(1, 0, 3);
  f.Settle();
  CHECK_FALSE(Done(rest));
  CHECK(Await(f.Push(2, 0, 5)).ok());
  CHECK(Await(rest).ok());
  CHECK(f.Values(1) == std::vector<float>(kParams, -4));
}

TEST_CASE("BSP: what a worker sends before the others begin is taken; side by side it waits for their part",
          "[param_server]") {
  Fixture f(0);
  const auto first = f.Send(f.PartOf(1, 0, 0, 3, /*parts=*/2));
  f.Settle();
  CHECK(first->taken);
  const auto theirs = f.Send(f.PartOf(2, 0, 1, 5, 2));
  const auto second = f.Send(f.PartOf(1, 0, 1, 3, 2));
  CHECK(Await(theirs).ok());
  CHECK(Await(second).ok());
  CHECK_FALSE(theirs->taken);
  CHECK_FALSE(second->taken);
  CHECK(Await(f.Send(f.PartOf(2, 0, 0, 5, 2))).ok());
  CHECK(Await(first).ok());
  // Of the next step the first to come is before the others; then one who waits for long has fallen behind.
  const auto early = f.Push(1, 1, 3);
  f.Settle();
  CHECK(early->taken);
  const auto late = f.Send(f.PartOf(2, 1, 0, 5, 2));
  CHECK(Await(f.Send(f.PartOf(2, 1, 1, 5, 2))).ok());
  CHECK(Await(late).ok());
  CHECK(Await(early).ok());
  const auto ahead = f.Send(f.PartOf(1, 2, 0, 3, 2));
  const auto aside = f.Send(f.PartOf(2, 2, 1, 5, 2));
  f.Settle();
  f.server().Tick(Now());
  CHECK_FALSE(aside->taken);
  f.server().Tick(Now() + limits::kInStepPatience);
  CHECK(aside->taken);
  CHECK_FALSE(Done(aside));
  CHECK(f.Values(1).back() == -8);
}

TEST_CASE("BSP: a worker that is expelled while its reply waits is told so, and its push does not count",
          "[param_server]") {
  Fixture f(0);
  const auto waiting = f.Push(2, 0, 100);
  f.Settle();
  f.server().Expel(WorkerId(2));
  CHECK(absl::IsFailedPrecondition(Await(waiting)));
  CHECK(Await(f.Push(1, 0, 3)).ok());
  CHECK(f.Values(1)[0] == -3);
}

TEST_CASE("a model larger than the memory is refused with both numbers, and a smaller one then taken",
          "[param_server]") {
  Metrics metrics;
  ParamServer::Options options = ParamServerHarness::MakeOptions(kAsp, OptimizerKind::kAdam, 1, 1);
  options.state_bytes_max = 8 << 20;
  ParamServer server(options, &metrics);
  ModelSpec large = SampleModel();
  large.mutable_tensors(0)->set_shape(0, 300'000);
  const absl::Status status = server.DefineModel(large);
  CHECK(absl::IsResourceExhausted(status));
  CHECK(absl::StrContains(status.message(), "the server has 8388608"));
  CHECK(server.DefineModel(SampleModel()).ok());
}

TEST_CASE("BSP: a reply that was lost is given again; the push had counted", "[param_server]") {
  Fixture f(0);
  const auto one = f.Push(1, 0, 2);
  CHECK(Await(f.Push(2, 0, 4)).ok());
  CHECK(Await(one).ok());
  CHECK(Await(f.Push(1, 0, 2)).ok());
  CHECK(f.Values(1)[0] == -3);
}

TEST_CASE("BSP: a dead process' push is not mixed with its replacement's", "[param_server]") {
  Fixture f(0);
  f.Push(2, 0, 100);
  f.Settle();
  f.server().Expel(WorkerId(2));
  f.server().Admit(WorkerId(2), Incarnation(5555), 0);
  f.server().Activate(WorkerId(2), 0);
  const auto one = f.Push(1, 0, 2);
  const auto replacement = f.Send(
      f.MakeFrame(FrameKind::kPushPull, WorkerId(2), Incarnation(5555), 0, std::vector<float>(kParams, 4)));
  CHECK(Await(replacement).ok());
  CHECK(Await(one).ok());
  CHECK(f.Values(1)[0] == -3);
}

TEST_CASE("SSP lets a worker be so many steps ahead", "[param_server]") {
  Fixture f(2);
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
  Fixture f(1);
  f.server().Deactivate(WorkerId(2));
  CHECK(Await(f.Push(2, 0, 1)).ok());
  CHECK(Await(f.Push(1, 0, 1)).ok());
  CHECK(f.server().Activate(WorkerId(2), 0) == 1);
  CHECK(Await(f.Push(2, 1, 1)).ok());
}

TEST_CASE("a waiting reply expires, and asking again goes on waiting", "[param_server]") {
  Fixture f(0);
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
  Fixture f(0);
  const auto waiting = f.Push(1, 0, 2);
  f.Settle();
  f.server().BeginDrain();
  CHECK(absl::IsUnavailable(Await(waiting)));
  CHECK(absl::IsUnavailable(Await(f.Push(2, 0, 2))));
  CHECK(f.server().WaitUntilIdle(absl::Seconds(10)));
}

TEST_CASE("malformed pushes get the right code and change nothing", "[param_server]") {
  const bool untouched = GENERATE(false, true);  // Checked by the caller, or on a lane.
  Fixture f(kAsp);
  const auto refused = [&](auto change, absl::StatusCode code, const std::string& word) {
    Frame frame = f.PushFrame(1, 0, 1);
    change(&frame);
    const auto pending = f.Send(frame, {nullptr, /*over_request=*/false, untouched});
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
  CHECK(f.Values(1) == std::vector<float>(kParams, 0));
  CHECK(f.server().GetStats().pushes == 0);
}

TEST_CASE("a push need not have all shards: it is complete when it has those that it says",
          "[param_server]") {
  Fixture f(/*bound=*/0);
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
  Fixture f(/*bound=*/0);
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
                                       std::vector<float>(kParams, 1)));
    CHECK_FALSE(harness.server().has_values());
    CHECK(absl::IsResourceExhausted(refused));
    CHECK(RetryAfter(refused) == limits::kOverloadRetry);
    CHECK(absl::StrContains(refused.message(), "allowed are 500"));
    CHECK(absl::StrContains(refused.message(), "synchronous") == (bound == 0));
  }
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
    harness.Define(SampleModel(), std::vector<float>(kParams, 0));
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
  Fixture f(kAsp, 4);
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
  CHECK(f.Values(1) == std::vector<float>(kParams, -200));
  CHECK(f.server().GetStats().pushes == 200);
}

TEST_CASE("a cut has all or nothing of every frame, while pushes go on", "[param_server]") {
  Fixture f(kAsp, 2);
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

}  // namespace recon
