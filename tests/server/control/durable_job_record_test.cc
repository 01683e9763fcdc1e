#include "server/control/durable_job_record.h"

#include "catch2/catch.hpp"
#include "tests/server/control/fake_ports.h"

namespace recon {
namespace {

JobRecord SmallJob() {
  JobRecord record;
  record.set_train_samples(40);
  record.set_test_samples(10);
  record.set_split_samples(10);
  record.set_eval_split_samples(5);
  record.set_seed(7);
  return record;
}

RegisterRequest WorkerWith(uint64_t train_samples, uint64_t test_samples, const std::string& fingerprint) {
  RegisterRequest request;
  request.set_train_samples(train_samples);
  request.set_test_samples(test_samples);
  request.set_data_fingerprint(fingerprint);
  return request;
}

}  // namespace

TEST_CASE("a job's record is there after a restart, and not when it could not be saved", "[job_record]") {
  FakeJournal journal;
  DurableJobRecord record(&journal);
  journal.fails = absl::UnavailableError("the disk is full");
  CHECK(record.Begin(SmallJob()) == journal.fails);
  CHECK_FALSE(record.known());
  journal.fails = absl::OkStatus();
  REQUIRE(record.Begin(SmallJob()).ok());
  CHECK(record.known());
  DurableJobRecord next(&journal);
  CHECK_FALSE(next.known());
  REQUIRE(next.Load().ok());
  CHECK(next.get().train_samples() == 40);
}

TEST_CASE("flags that would make other splits of a job are named", "[job_record]") {
  FakeJournal journal;
  DurableJobRecord record(&journal);
  REQUIRE(record.Begin(SmallJob()).ok());
  JobConfig job;
  job.set_split_samples(10);
  job.set_eval_split_samples(5);
  job.set_seed(7);
  CHECK(record.CheckFlags(job).ok());
  std::string words;
  SECTION("splits") {
    job.set_split_samples(20);
    words = "--split-samples is 20, this job was started with 10";
  }
  SECTION("splits of evaluations") {
    job.set_eval_split_samples(6);
    words = "--eval-split-samples is 6, this job was started with 5";
  }
  SECTION("seed") {
    job.set_seed(8);
    words = "--seed is 8, this job was started with 7";
  }
  const absl::Status refused = record.CheckFlags(job);
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK(refused.message() == words);
}

TEST_CASE("a worker with other data is refused, with both numbers", "[job_record]") {
  FakeJournal journal;
  DurableJobRecord record(&journal);
  REQUIRE(record.Begin(SmallJob()).ok());
  CHECK(record.CheckDataset(WorkerWith(40, 10, "")).ok());
  CHECK(record.CheckDataset(WorkerWith(41, 10, "")).message() ==
        "the worker has 41 training samples, the job has 40");
  CHECK(record.CheckDataset(WorkerWith(40, 11, "")).message() ==
        "the worker has 11 test samples, the job has 10");
}

TEST_CASE("the first fingerprint that a worker says is the job's", "[job_record]") {
  FakeJournal journal;
  DurableJobRecord record(&journal);
  REQUIRE(record.Begin(SmallJob()).ok());
  CHECK(record.CheckDataset(WorkerWith(40, 10, "aa")).ok());  // Nobody has said one yet.
  REQUIRE(record.NoteFingerprint("").ok());
  CHECK(journal.job->data_fingerprint().empty());
  journal.fails = absl::UnavailableError("the disk is full");
  CHECK(record.NoteFingerprint("aa") == journal.fails);
  CHECK(record.CheckDataset(WorkerWith(40, 10, "bb")).ok());
  journal.fails = absl::OkStatus();
  REQUIRE(record.NoteFingerprint("aa").ok());
  REQUIRE(record.NoteFingerprint("bb").ok());
  CHECK(journal.job->data_fingerprint() == "aa");
  CHECK(record.CheckDataset(WorkerWith(40, 10, "aa")).ok());
  CHECK(record.CheckDataset(WorkerWith(40, 10, "")).ok());
  CHECK(absl::IsInvalidArgument(record.CheckDataset(WorkerWith(40, 10, "bb"))));
}

TEST_CASE("a step's samples are fixed once, when they are durable", "[job_record]") {
  FakeJournal journal;
  DurableJobRecord record(&journal);
  CHECK(record.step_samples() == 0);
  REQUIRE(record.Begin(SmallJob()).ok());
  journal.fails = absl::UnavailableError("the disk is full");
  CHECK(record.FixStepSamples(20) == journal.fails);
  CHECK(record.step_samples() == 0);
  journal.fails = absl::OkStatus();
  REQUIRE(record.FixStepSamples(30).ok());
  REQUIRE(record.FixStepSamples(40).ok());
  CHECK(record.step_samples() == 30);
  CHECK(journal.job->step_samples() == 30);
}

}  // namespace recon
