#include "worker/training/push_schedule.h"

#include "catch2/catch.hpp"
#include "common/tensor/shard_assignment.h"
#include "worker/comm/frames.h"
#include "worker/training/gradient_sum.h"

namespace recon {
namespace {

// Shards 0 and 1 are of "conv", 2 of "dense".
ParamLayout ConvAndDense() {
  ModelSpec model;
  model.set_name("layers");
  TensorSpec* conv = model.add_tensors();
  conv->set_name("conv");
  conv->add_shape(kShardParamsMax + 5);
  conv->set_group("conv");
  TensorSpec* dense = model.add_tensors();
  dense->set_name("dense");
  dense->add_shape(7);
  dense->set_group("dense");
  return *ParamLayout::Create(model);
}

}  // namespace

TEST_CASE("a group is in each so-many-th push, by the step's number", "[schedule]") {
  const ParamLayout layout = ConvAndDense();
  REQUIRE(layout.shard_count() == 3);
  JobConfig job;
  CHECK_FALSE(PushSchedule::Create(job, layout)->partial());
  CHECK(PushSchedule::Create(job, layout)->Due(5).empty());
  (*job.mutable_sync_periods())["dense"] = 1;
  CHECK_FALSE(PushSchedule::Create(job, layout)->partial());
  (*job.mutable_sync_periods())["conv"] = 4;
  const PushSchedule schedule = *PushSchedule::Create(job, layout);
  CHECK(schedule.partial());
  for (uint64_t step = 0; step < 20; ++step) {
    const bool fourth = step % 4 == 3;
    CHECK(schedule.Due(step) == std::vector<bool>{fourth, fourth, true});
  }
  (*job.mutable_sync_periods())["dense"] = 2;
  CHECK(absl::IsInvalidArgument(PushSchedule::Create(job, layout).status()));
}

TEST_CASE("fragments of local steps come in turn, each shard in one", "[schedule]") {
  const ParamLayout layout = ConvAndDense();
  JobConfig job;
  job.mutable_local()->set_steps(12);
  job.mutable_local()->set_fragments(1);
  CHECK_FALSE(PushSchedule::Create(job, layout)->partial());
  CHECK(PushSchedule::Create(job, layout)->steps() == 12);
  job.mutable_local()->set_fragments(2);
  const PushSchedule two = *PushSchedule::Create(job, layout);
  CHECK(two.steps() == 6);
  CHECK(two.fragments() == 2);
  CHECK(two.Due(0) == std::vector<bool>{true, true, false});
  CHECK(two.Due(1) == std::vector<bool>{false, false, true});
  job.mutable_local()->set_fragments(12);  // There are three shards.
  const PushSchedule three = *PushSchedule::Create(job, layout);
  CHECK(three.steps() == 4);
  CHECK(three.Due(2) == std::vector<bool>{false, false, true});
  job.mutable_local()->set_steps(8);  // Three do not divide it.
  job.mutable_local()->set_fragments(4);
  CHECK(PushSchedule::Create(job, layout)->fragments() == 2);
}

TEST_CASE("each shard's mean is over the batches since it was taken", "[schedule]") {
  const ParamLayout layout = ConvAndDense();
  GradientSum sum(&layout);
  CHECK_FALSE(sum.holds());
  const std::vector<float> ones(layout.params(), 1.0f), fours(layout.params(), 4.0f);
  std::vector<float> mean(layout.params());
  const size_t dense = layout.shards()[2].offset;
  const size_t second = layout.shards()[1].offset;
  sum.Add(ones, 64, {1, 2, 3}, 1);
  GradientSum::Taken taken = sum.Take({false, false, true}, 1, absl::MakeSpan(mean));
  CHECK(taken.samples == std::vector<uint32_t>{0, 0, 64});
  CHECK(taken.versions[2] == 3);
  CHECK(mean[0] == 0);
  CHECK(mean[dense] == 1);
  CHECK(sum.holds());
  sum.Add(fours, 32, {4, 5, 6}, 1);
  taken = sum.Take({true, false, true}, 1, absl::MakeSpan(mean));
  CHECK(taken.samples == std::vector<uint32_t>{96, 0, 32});
  CHECK(taken.versions[0] == 1);
  CHECK(taken.versions[2] == 6);
  CHECK(mean[0] == 2);  // (64 * 1 + 32 * 4) / 96
  CHECK(mean[second] == 0);
  CHECK(mean[dense] == 4);
  sum.Add(fours, 96, {7, 8, 9}, 2);
  taken = sum.Take({}, 2, absl::MakeSpan(mean));
  CHECK(taken.samples == std::vector<uint32_t>{96, 192, 96});
  CHECK(taken.versions == std::vector<uint64_t>{7, 0, 9});  // The second began in an epoch before.
  CHECK(mean[0] == 4);
  CHECK(mean[second] == 3);
  CHECK_FALSE(sum.holds());
  sum.Add(ones, 1, {7, 8, 9}, 2);
  sum.Clear();
  CHECK_FALSE(sum.holds());
  (void)sum.Take({}, 2, absl::MakeSpan(mean));
  CHECK(mean == std::vector<float>(layout.params(), 0.0f));
}

TEST_CASE("frames say how many shards the push has, and how many each server gets", "[schedule]") {
  const ParamLayout layout = ConvAndDense();
  std::vector<EncodedShard> shards = PlainShards(layout, std::vector<float>(layout.params()));
  const std::vector<uint32_t> servers = {0, 1, 1};
  for (const Frame& frame : FramesFor(layout, FrameHeader(), WorkerIdentity(), shards, servers)) {
    CHECK(frame.header.push_parts == 3);
    CHECK(frame.header.server_parts == 0);  // All that it has.
  }
  shards[1].left_out = true;
  const std::vector<Frame> frames = FramesFor(layout, FrameHeader(), WorkerIdentity(), shards, servers);
  REQUIRE(frames.size() == 2);
  for (const Frame& frame : frames) {
    REQUIRE(frame.parts.size() == 1);
    CHECK(frame.parts[0].shard != 1);
    CHECK(frame.header.push_parts == 2);
    CHECK(frame.header.server_parts == 1);
  }
  // A mean over other samples has another weight, and so a header of its own.
  shards[2].samples = 64;
  FrameHeader header;
  header.samples = 16;
  const std::vector<uint32_t> one_server = {0, 0, 0};
  const std::vector<Frame> weighted = FramesFor(layout, header, WorkerIdentity(), shards, one_server);
  REQUIRE(weighted.size() == 2);
  CHECK(weighted[0].header.samples == 16);
  CHECK(weighted[1].header.samples == 64);
  CHECK(weighted[1].header.server_parts == 2);
  shards[2].left_out = true;
  CHECK(FramesFor(layout, FrameHeader(), WorkerIdentity(), shards, servers).size() == 1);
}

}  // namespace recon
