#include <memory>
#include <optional>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/mutex.h"
#include "common/storage/local_store.h"
#include "server/recovery/snapshot_service.h"
#include "tests/server/data_plane/small_job.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

constexpr uint32_t kGradient = 0, kState = 1;  // Shards.

ModelSpec ModelWithState() {
  ModelSpec model;
  model.set_name("means");
  TensorSpec* gradient = model.add_tensors();
  gradient->set_name("gradient/w");
  gradient->add_shape(10);
  TensorSpec* state = model.add_tensors();
  state->set_name("w");
  state->add_shape(6);
  state->set_group(kStateGroup);
  state->set_averaged(true);
  return model;
}

// Two workers have the optimizer.
struct MeansJob : ParamServerHarness {
  MeansJob() : ParamServerHarness(/*bound=*/0, OptimizerKind::kMean) {
    Define(ModelWithState(), std::vector<float>(16, 0));
    for (const uint32_t worker : {1, 2}) Join(worker);
  }
  Frame Of(FrameKind kind, uint32_t worker, uint64_t step, float value, uint32_t shard) {
    const std::vector<float> values(Asks(kind) ? 0 : 16, value);
    Frame frame = MakeFrame(kind, WorkerId(worker), IncarnationOf(worker), step, values);
    frame.parts = {frame.parts[shard]};
    frame.payloads = {frame.payloads[shard]};
    frame.header.push_parts = frame.header.server_parts = 1;
    return frame;
  }
  std::shared_ptr<Pending> PushOf(uint32_t worker, uint64_t step, float value) {
    return Send(Of(FrameKind::kPushPull, worker, step, value, kGradient));
  }
  absl::StatusOr<ByteChain> ReplyTo(const Frame& frame) {
    const auto pending = Send(frame);
    pending->done.WaitForNotification();
    return pending->reply;
  }
  absl::Status Upload(uint32_t worker, uint64_t upload, uint64_t step, float value) {
    Frame frame = Of(FrameKind::kState, worker, step, value, kState);
    frame.header.order_key = upload;
    return Call(frame);
  }
  float StateNow() { return FirstOf(*ReplyTo(Of(FrameKind::kPull, 1, 0, 0, kState))); }
  static float FirstOf(const ByteChain& reply) {
    const Frame frame = *DecodeFrame(reply);
    float first = 0;
    frame.payloads[0].CopyTo(&first, sizeof(first));
    return first;
  }
};

}  // namespace

TEST_CASE("the reply to a push has the mean of its step, also when it is sent again later",
          "[param_server][mean]") {
  MeansJob job;
  const auto one = job.PushOf(1, 0, 2);
  CHECK_FALSE(Done(one));
  const auto two = job.PushOf(2, 0, 4);
  REQUIRE(Await(one).ok());
  REQUIRE(Await(two).ok());
  CHECK(MeansJob::FirstOf(*one->reply) == 3);
  CHECK(MeansJob::FirstOf(*two->reply) == 3);
  const auto next = job.PushOf(1, 1, 10);
  REQUIRE(Await(job.PushOf(2, 1, 10)).ok());
  REQUIRE(Await(next).ok());
  const auto again = job.PushOf(1, 0, 2);
  REQUIRE(Await(again).ok());
  CHECK(MeansJob::FirstOf(*again->reply) == 3);
}

TEST_CASE("a worker that takes no part in a step asks for its mean", "[param_server][mean]") {
  MeansJob job;
  job.server().members()->Deactivate(WorkerId(2));
  const auto mean_of = [&job](uint64_t step) {
    return *DecodeFrame(*job.ReplyTo(job.Of(FrameKind::kPullMean, 2, step, 0, kGradient)));
  };
  CHECK(mean_of(0).parts[0].version == 0);
  REQUIRE(Await(job.PushOf(1, 0, 7)).ok());
  const Frame mean = mean_of(0);
  CHECK(mean.parts[0].version == 1);
  float first = 0;
  mean.payloads[0].CopyTo(&first, sizeof(first));
  CHECK(first == 7);
  CHECK(mean_of(1).parts[0].version == 0);
}

TEST_CASE("a worker's state is taken when it is asked for, and takes its place when it is committed",
          "[param_server][mean]") {
  MeansJob job;
  WorkersState* const state = WorkersStateOf(&job.server());
  CHECK(absl::IsFailedPrecondition(job.Upload(1, 0, 3, 5)));
  std::optional<uint64_t> staged;
  state->AwaitState(WorkerId(1), 20, [&staged](uint64_t step) { staged = step; });
  CHECK(absl::IsFailedPrecondition(job.Upload(2, 20, 3, 5)));
  CHECK(absl::IsFailedPrecondition(job.Upload(1, 19, 3, 5)));
  CHECK(absl::IsUnavailable(job.Upload(1, 21, 3, 5)));
  Frame of_gradient = job.Of(FrameKind::kState, 1, 3, 5, kGradient);
  of_gradient.header.order_key = 20;
  const absl::Status refused = job.Call(of_gradient);
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(absl::StrContains(refused.message(), "holds no state"));
  CHECK(absl::IsFailedPrecondition(state->CommitState(20)));
  CHECK(job.Upload(1, 20, 3, 5).ok());
  CHECK(staged == 3);
  CHECK(job.StateNow() == 0);
  CHECK(absl::IsAlreadyExists(job.Upload(1, 20, 3, 5)));
  CHECK(absl::IsFailedPrecondition(job.Upload(1, 20, 4, 6)));
  REQUIRE(state->CommitState(20).ok());
  CHECK(job.StateNow() == 5);
  CHECK(state->state_version() == 20);
  CHECK(absl::IsFailedPrecondition(job.Upload(1, 20, 3, 6)));
}

TEST_CASE("an upload that another one was asked for in the place of is dropped", "[param_server][mean]") {
  MeansJob job;
  WorkersState* const state = WorkersStateOf(&job.server());
  state->AwaitState(WorkerId(1), 20, [](uint64_t) {});
  REQUIRE(job.Upload(1, 20, 3, 5).ok());
  state->AwaitState(WorkerId(2), 21, [](uint64_t) {});
  CHECK(absl::IsFailedPrecondition(state->CommitState(20)));
  CHECK(absl::IsFailedPrecondition(state->CommitState(21)));
  REQUIRE(job.Upload(2, 21, 4, 6).ok());
  REQUIRE(state->CommitState(21).ok());
  CHECK(job.StateNow() == 6);
}

TEST_CASE("the state of a snapshot takes its place again, under another number", "[param_server][mean]") {
  MeansJob job;
  WorkersState* const state = WorkersStateOf(&job.server());
  const auto upload = [&](uint64_t number, float value) {
    state->AwaitState(WorkerId(1), number, [](uint64_t) {});
    REQUIRE(job.Upload(1, number, number, value).ok());
    REQUIRE(state->CommitState(number).ok());
  };
  upload(20, 5);
  const TempDir directory;
  const auto store = *LocalStore::Open(directory.path(), /*writer=*/true);
  Metrics metrics;
  SnapshotService::Options options;
  options.optimizer = "mean";
  SnapshotService service(options, &job.server(), store.get(), &metrics);
  Notification done;
  service.Take("requested", [&](const absl::StatusOr<SnapshotReply>& reply) {
    CHECK(reply.ok());
    done.Notify();
  });
  done.WaitForNotification();
  upload(21, 6);
  state->AwaitState(WorkerId(1), 22, [](uint64_t) {});
  REQUIRE(job.Upload(1, 22, 9, 7).ok());  // Staged, and not committed.
  const SnapshotReader reader(store.get());
  const Manifest manifest = *reader.ReadManifest(Generation(1));
  REQUIRE(state->RestoreState(reader, manifest, 23).ok());
  CHECK(job.StateNow() == 5);
  CHECK(state->state_version() == 23);
  CHECK(absl::IsFailedPrecondition(state->CommitState(22)));

  MeansJob again;
  REQUIRE(again.server().Restore(reader, manifest).ok());
  CHECK(again.StateNow() == 5);
  CHECK(WorkersStateOf(&again.server())->state_version() == 20);
  CHECK(again.server().GetStats().updates == 0);  // Uploads are none.
}

TEST_CASE("means and state are refused in jobs whose server has the optimizer", "[param_server][mean]") {
  SmallJob job(0);
  Frame frame = job.MakeFrame(FrameKind::kPullMean, WorkerId(1), ParamServerHarness::IncarnationOf(1), 0, {});
  CHECK(absl::IsFailedPrecondition(job.Call(frame)));
  frame = job.PushFrame(1, 0, 1);
  frame.header.kind = static_cast<uint8_t>(FrameKind::kState);
  CHECK(absl::IsFailedPrecondition(job.Call(frame)));
}

}  // namespace recon
