#include "server/control/push_sizes.h"

#include "catch2/catch.hpp"

namespace recon {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

// Workers 1 to `workers`, of whom each computes or not, with the seconds of a batch.
Membership Members(const std::vector<double>& batch_seconds) {
  Membership members({absl::Seconds(1), absl::Seconds(3)});
  for (size_t i = 0; i < batch_seconds.size(); ++i) {
    const WorkerId worker(static_cast<uint32_t>(i + 1));
    Membership::Member member;
    member.incarnation = Incarnation(i + 1);
    REQUIRE(members.Admit(worker, member, kNow).ok());
    members.Find(worker)->computes = batch_seconds[i] > 0;
    members.Find(worker)->progress.set_batch_seconds(batch_seconds[i]);
  }
  return members;
}

JobConfig Synchronous(uint64_t step_samples) {
  JobConfig job;
  job.set_batch_samples(5);
  job.mutable_policy()->set_step_samples(step_samples);
  return job;
}

std::vector<uint32_t> Sizes(const PushSizes& sizes, const Membership& members, const JobConfig& job,
                            uint64_t fixed = 0) {
  std::vector<uint32_t> all;
  for (const auto& [worker, member] : members.members()) {
    all.push_back(sizes.BatchesOf(worker, members, job, fixed));
  }
  return all;
}

}  // namespace

TEST_CASE("a step has a fixed number of samples in synchronous gradients only", "[push_sizes]") {
  JobConfig job = Synchronous(40);
  CHECK(StepSamples(job, 15) == 40);
  job.mutable_policy()->set_step_samples_constant(true);
  CHECK(StepSamples(job, 15) == 15);
  CHECK(StepSamples(job, 0) == 0);
  job.set_bound(4);
  CHECK(StepSamples(job, 15) == 0);
  job.set_bound(0);
  job.mutable_local()->set_steps(8);
  CHECK(StepSamples(job, 15) == 0);
}

TEST_CASE("those who compute share the batches of a step", "[push_sizes]") {
  const PushSizes sizes;
  const JobConfig job = Synchronous(40);  // Eight batches.
  CHECK(Sizes(sizes, Members({0.1, 0.1, 0.1}), job) == std::vector<uint32_t>{3, 3, 2});
  // At the start nobody has computed yet: all will.
  CHECK(Sizes(sizes, Members({0, 0, 0}), job) == std::vector<uint32_t>{3, 3, 2});
  // A newcomer is counted when it is its own turn.
  CHECK(Sizes(sizes, Members({0.1, 0, 0.1}), job) == std::vector<uint32_t>{4, 3, 4});
  Membership members = Members({0.1, 0.1, 0.1});
  members.Remove(WorkerId(1));
  CHECK(sizes.BatchesOf(WorkerId(2), members, job, 0) == 4);
  CHECK(sizes.BatchesOf(WorkerId(3), members, job, 0) == 4);
}

TEST_CASE("a step of half a batch more has one batch more", "[push_sizes]") {
  const PushSizes sizes;
  CHECK(Sizes(sizes, Members({0.1}), Synchronous(12)) == std::vector<uint32_t>{2});
  CHECK(Sizes(sizes, Members({0.1}), Synchronous(13)) == std::vector<uint32_t>{3});
}

TEST_CASE("rounds of local steps are as long as their worker is fast, by the last look", "[push_sizes]") {
  PushSizes sizes;
  JobConfig job;
  job.mutable_local()->set_steps(8);
  Membership members = Members({0.1, 0.2, 0.4});
  CHECK(Sizes(sizes, members, job) == std::vector<uint32_t>{8, 8, 8});
  job.mutable_policy()->set_local_steps_by_speed(true);
  CHECK(Sizes(sizes, members, job) == std::vector<uint32_t>{8, 8, 8});  // Nobody has looked.
  sizes.NoteFastest(members);
  CHECK(Sizes(sizes, members, job) == std::vector<uint32_t>{8, 4, 2});
  members.Remove(WorkerId(1));
  CHECK(sizes.BatchesOf(WorkerId(3), members, job, 0) == 2);
  sizes.NoteFastest(members);
  CHECK(sizes.BatchesOf(WorkerId(3), members, job, 0) == 4);
}

TEST_CASE("a push of gradients is as large as its worker likes where no step is fixed", "[push_sizes]") {
  CHECK(Sizes(PushSizes(), Members({0.1, 0.2}), Synchronous(0)) == std::vector<uint32_t>{0, 0});
}

}  // namespace recon
