#include "worker/process/batch_plan.h"

#include <string>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"

namespace recon {
namespace {

JobConfig Asp() {
  JobConfig job;
  job.set_bound(-1);
  job.set_batch_samples(64);
  job.set_split_samples(1000);
  return job;
}

BatchFlags Follows() {
  BatchFlags flags;
  flags.follows_device = true;
  return flags;
}

// Batches of the plan's size, each in `took`; until it says something.
std::vector<std::string> NoteUntil(BatchPlan* plan, uint64_t samples, absl::Duration took, absl::Time* now) {
  for (int i = 0; i < 1000; ++i) {
    *now += took;
    const std::vector<std::string> lines = plan->Note(samples, took, took, 0.1, *now);
    if (!lines.empty()) return lines;
  }
  return {};
}

}  // namespace

TEST_CASE("without a flag batches are the job's, and whole", "[batch]") {
  BatchPlan plan{BatchFlags()};
  CHECK(plan.NextBatch(Asp()) == 64);
  CHECK(plan.Piece(64) == 64);
  CHECK_FALSE(plan.says());
  CHECK_FALSE(plan.OutOfMemory(64, absl::FromUnixSeconds(1000)));
}

TEST_CASE("pieces of a fixed size stay, and none is larger than its batch", "[batch]") {
  BatchFlags flags;
  flags.piece_samples = 24;
  BatchPlan plan(flags);
  CHECK(plan.NextBatch(Asp()) == 64);
  CHECK(plan.Piece(64) == 24);
  CHECK(plan.Piece(10) == 10);
  CHECK_FALSE(plan.OutOfMemory(24, absl::FromUnixSeconds(1000)));
}

TEST_CASE("batches that follow the device begin as the job's and grow up to a split, or their bound",
          "[batch]") {
  absl::Time now = absl::FromUnixSeconds(1000);
  BatchFlags flags = Follows();
  flags.max = 200;
  for (const uint32_t most : {1000u, 200u}) {
    BatchPlan plan(most == 1000 ? Follows() : flags);
    uint32_t samples = plan.NextBatch(Asp());
    CHECK(samples == 64);
    while (samples < most) {
      // As if a batch took as long whatever it has.
      const std::vector<std::string> lines = NoteUntil(&plan, samples, absl::Milliseconds(500), &now);
      REQUIRE(lines.size() == 1);
      CHECK(absl::StrContains(lines[0], std::to_string(samples) + " -> "));
      samples = plan.NextBatch(Asp());
    }
    CHECK(samples == most);
    CHECK(NoteUntil(&plan, samples, absl::Milliseconds(500), &now).empty());
  }
}

TEST_CASE("the last batch of a split, which is shorter, tells nothing of the others", "[batch]") {
  BatchPlan plan(Follows());
  plan.NextBatch(Asp());
  absl::Time now = absl::FromUnixSeconds(1000);
  CHECK(NoteUntil(&plan, 40, absl::Seconds(1), &now).empty());
}

TEST_CASE("out of memory the pieces become smaller, with micro-batches that follow, or else the batches",
          "[batch]") {
  const absl::Time now = absl::FromUnixSeconds(1000);
  BatchFlags flags;
  flags.pieces_follow_device = true;
  BatchPlan pieces(flags);
  CHECK(pieces.NextBatch(Asp()) == 64);
  CHECK(*pieces.OutOfMemory(64, now) == 32);
  CHECK(*pieces.OutOfMemory(32, now) == 16);
  CHECK(pieces.NextBatch(Asp()) == 64);
  CHECK(pieces.Piece(64) == 16);

  BatchPlan batches(Follows());
  batches.NextBatch(Asp());
  CHECK(*batches.OutOfMemory(64, now) == 32);  // This batch in pieces, and the next ones are smaller.
  CHECK(batches.NextBatch(Asp()) == 32);
  CHECK_FALSE(batches.OutOfMemory(1, now));
}

TEST_CASE("a policy that leaves no choice of batches is said in one line, and obeyed when it comes later",
          "[batch]") {
  const auto refused = [](const JobConfig& job, const BatchFlags& flags, const std::string& part) {
    const absl::Status status = BatchPlan::Check(flags, job);
    INFO(status);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StrContains(status.message(), part));
    CHECK(BatchPlan::Check(BatchFlags(), job).ok());
  };
  JobConfig bsp = Asp();
  bsp.set_bound(0);
  refused(bsp, Follows(), "the job is synchronous");
  JobConfig local = Asp();
  local.mutable_local()->set_steps(8);
  refused(local, Follows(), "local steps");
  BatchFlags large = Follows();
  large.min = 2000;
  refused(Asp(), large, "--batch-min 2000: a batch is of one split, which has 1000");

  BatchPlan plan(Follows());
  plan.NextBatch(Asp());
  CHECK(*plan.OutOfMemory(64, absl::FromUnixSeconds(1000)) == 32);
  CHECK(plan.NextBatch(local) == 64);
  CHECK(plan.NextBatch(Asp()) == 32);
}

}  // namespace recon
