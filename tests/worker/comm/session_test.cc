#include "worker/comm/session.h"

#include <atomic>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/support/process.h"
#include "tests/worker/comm/fake_head.h"

namespace recon {
namespace {

constexpr uint64_t kSplitSamples = 100;

RegisterReply Registered(uint64_t cluster_epoch) {
  RegisterReply reply;
  reply.set_worker(7);
  reply.set_cluster_epoch(cluster_epoch);
  reply.mutable_job()->set_heartbeat_interval_ms(5);
  reply.mutable_job()->set_batch_samples(1);
  reply.mutable_job()->set_split_samples(kSplitSamples);
  reply.mutable_job()->set_eval_split_samples(kSplitSamples);
  reply.set_workers(1);
  return reply;
}

// Splits 10, 11 and 12 of the first pass.
Lease ThreeSplits(uint64_t number) {
  Lease lease;
  lease.set_lease(number);
  lease.set_kind(LEASE_TRAIN);
  lease.set_split(10);
  lease.set_splits(3);
  lease.set_begin(10 * kSplitSamples);
  lease.set_end(13 * kSplitSamples);
  return lease;
}

Session::Options Worker() {
  Session::Options options;
  options.name = "w";
  options.incarnation = Incarnation(1);
  options.train_samples = 13 * kSplitSamples;
  return options;
}

// A worker of a head in memory.
struct Joined {
  explicit Joined(uint64_t cluster_epoch = 1) {
    head.registrations.Otherwise(Registered(cluster_epoch));
    auto joined = Session::Join(Worker(), &head, &stop);
    REQUIRE(joined.ok());
    session = std::move(*joined);
  }
  Session::HeldLeasePtr Acquire(uint64_t number) {
    AcquireReply reply;
    *reply.mutable_lease() = ThreeSplits(number);
    head.acquisitions.Next(reply);
    const auto acquired = session->Acquire();
    REQUIRE(acquired.ok());
    REQUIRE(acquired->lease != nullptr);
    return acquired->lease;
  }

  FakeHead head;
  std::atomic<bool> stop{false};
  std::unique_ptr<Session> session;
};

// What is logged while it lives. Made and destroyed while no other thread logs.
class CapturedLog {
 public:
  CapturedLog() {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "captured", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_)));
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  int Count(const std::string& what) const {
    const std::string text = text_.str();
    int count = 0;
    for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++count;
    return count;
  }

 private:
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::ostringstream text_;
};

}  // namespace

TEST_CASE("a worker registers again and again until the head answers", "[session]") {
  FakeHead head;
  const std::atomic<bool> stop{false};
  head.registrations.Next(absl::UnavailableError("not there yet"));
  head.registrations.Next(absl::AbortedError("its name is in use still"));
  head.registrations.Otherwise(Registered(4));
  const auto session = Session::Join(Worker(), &head, &stop);
  REQUIRE(session.ok());
  CHECK(head.registrations.asked().size() == 3);
  CHECK((*session)->standing().identity.cluster_epoch() == 4);
  CHECK((*session)->standing().registration == 1);
  CHECK((*session)->worker() == 7);
}

TEST_CASE("what the head refuses is not asked again", "[session]") {
  FakeHead head;
  const std::atomic<bool> stop{false};
  head.registrations.Otherwise(absl::InvalidArgumentError("another model"));
  CHECK(Session::Join(Worker(), &head, &stop).status() == absl::InvalidArgumentError("another model"));
  CHECK(head.registrations.asked().size() == 1);
}

TEST_CASE("a head that stays away is given up after the time the user gave", "[session]") {
  FakeHead head;
  const std::atomic<bool> stop{false};
  head.registrations.Otherwise(absl::UnavailableError("connection refused"));
  Session::Options options = Worker();
  options.reconnect_for = absl::Milliseconds(100);
  const absl::Status status = Session::Join(options, &head, &stop).status();
  CHECK(status == absl::UnavailableError("the server has not answered for 100ms: connection refused"));
  CHECK(head.registrations.asked().size() >= 2);
}

TEST_CASE("a worker that is stopped does not wait for a head that is away", "[session]") {
  FakeHead head;
  std::atomic<bool> stop{false};
  head.registrations.Otherwise(absl::UnavailableError("connection refused"));
  absl::Status status;
  std::thread joins([&] { status = Session::Join(Worker(), &head, &stop).status(); });
  head.registrations.AwaitMore(1);
  stop = true;
  joins.join();
  CHECK(absl::IsCancelled(status));
}

TEST_CASE("a name that is taken is drawn again, and one that the user gave is not", "[session]") {
  FakeHead head;
  const std::atomic<bool> stop{false};
  head.registrations.Next(absl::AlreadyExistsError("taken"));
  CHECK(absl::IsAlreadyExists(Session::Join(Worker(), &head, &stop).status()));
  head.registrations.Next(absl::AlreadyExistsError("taken"));
  head.registrations.Otherwise(Registered(1));
  Session::Options options = Worker();
  options.draw_name = [] { return "another"; };
  const auto session = Session::Join(options, &head, &stop);
  REQUIRE(session.ok());
  CHECK((*session)->name() == "another");
  CHECK(head.registrations.asked().back().name() == "another");
}

TEST_CASE("a head that comes back as another cluster epoch is told what is held, and its numbers count",
          "[session]") {
  Joined job(1);
  const Session::HeldLeasePtr lease = job.Acquire(5);
  REQUIRE(job.session->CompleteTraining(lease, 0, true).ok());
  Lease left = ThreeSplits(9);
  left.set_split(11);
  RegisterReply again = Registered(2);
  *again.add_adopted() = left;
  job.head.registrations.Otherwise(again);
  job.head.completions.Next(absl::FailedPreconditionError("cluster epoch 1 is over"));
  REQUIRE(job.session->CompleteTraining(lease, 1, true).ok());
  const RegisterRequest told = job.head.registrations.asked().back();
  REQUIRE(told.held_size() == 1);
  CHECK(told.held(0).split() == 11);
  CHECK(told.held(0).splits() == 2);
  CHECK(told.held(0).begin() == 11 * kSplitSamples);
  const CompleteRequest completed = job.head.completions.asked().back();
  CHECK(completed.identity().cluster_epoch() == 2);
  CHECK(completed.lease() == 9);
  CHECK(completed.split() == 11);
  CHECK(job.session->done(lease) == 2);
}

TEST_CASE("a head whose job cannot be is not joined, and a lease of samples that there are not is not begun",
          "[session]") {
  FakeHead head;
  const std::atomic<bool> stop{false};
  RegisterReply reply = Registered(1);
  reply.mutable_job()->set_split_samples(0);
  head.registrations.Otherwise(reply);
  const auto refused = Session::Join(Worker(), &head, &stop);
  CHECK(absl::IsInvalidArgument(refused.status()));
  CHECK_THAT(std::string(refused.status().message()), Catch::Matchers::Contains("splits of no samples"));

  Joined job;
  AcquireReply beyond;
  *beyond.mutable_lease() = ThreeSplits(5);
  beyond.mutable_lease()->set_data_epoch(UINT32_MAX);
  job.head.acquisitions.Next(beyond);
  CHECK(absl::IsInvalidArgument(job.session->Acquire().status()));
}

TEST_CASE("a lease is lost of which the head says that more is completed than it has", "[session]") {
  Joined job;
  const Session::HeldLeasePtr lease = job.Acquire(5);
  Lease beyond = ThreeSplits(9);
  beyond.set_split(14);  // It ends with 12.
  RegisterReply again = Registered(2);
  *again.add_adopted() = beyond;
  job.head.registrations.Otherwise(again);
  job.head.heartbeats.Next(absl::FailedPreconditionError("cluster epoch 1 is over"));
  REQUIRE(Eventually([&] { return job.session->standing().registration == 2; }));
  CHECK(job.session->lost(lease));
  CHECK(job.session->done(lease) == 0);
}

TEST_CASE("a worker that the head has given up registers again, and its lease is lost", "[session]") {
  Joined job;
  const Session::HeldLeasePtr lease = job.Acquire(5);
  job.head.heartbeats.Next(absl::FailedPreconditionError("it was silent for 10 s"));
  REQUIRE(Eventually([&] { return job.session->standing().registration == 2; }));
  CHECK(job.session->lost(lease));
  CHECK(absl::IsAborted(job.session->CompleteTraining(lease, 0, true)));
  CHECK(job.head.completions.asked().empty());
  CHECK(job.session->fatal().ok());
}

TEST_CASE("heartbeats name what is held, and say which of it is lost", "[session]") {
  Joined job;
  const Session::HeldLeasePtr lease = job.Acquire(5);
  const HeartbeatRequest beat = job.head.heartbeats.AwaitMore(2);
  REQUIRE(beat.leases_size() == 1);
  CHECK(beat.leases(0) == 5);
  HeartbeatReply reply;
  reply.add_lost(5);
  job.head.heartbeats.Next(reply);
  REQUIRE(Eventually([&] { return job.session->lost(lease); }));
  job.session->Abandon(lease);
  CHECK(job.head.heartbeats.AwaitMore(2).leases_size() == 0);
}

TEST_CASE("processes that wait in turn for a worker's name are told of once, not with each heartbeat",
          "[session]") {
  const CapturedLog log;
  {
    Joined job;
    for (int i = 0; i < 10; ++i) {
      HeartbeatReply reply;
      reply.set_rival(i % 2 == 0 ? "10.0.0.8:4711" : "10.0.0.9:4711");
      job.head.heartbeats.Next(reply);
    }
    job.head.heartbeats.AwaitMore(12);
  }
  CHECK(log.Count("the process at 10.0.0.8:4711 waits for this worker's name, w:") == 1);
  CHECK(log.Count("waits for this worker's name") == 1);
}

TEST_CASE("an error that no registration cures ends the session", "[session]") {
  Joined job;
  job.head.heartbeats.Next(absl::PermissionDeniedError("not with this secret"));
  REQUIRE(Eventually([&] { return !job.session->fatal().ok(); }));
  CHECK(absl::IsPermissionDenied(job.session->fatal()));
  job.head.acquisitions.Otherwise(absl::UnavailableError("away"));
  CHECK(absl::IsPermissionDenied(job.session->Acquire().status()));
}

TEST_CASE("a completion is said until it is answered, and once", "[session]") {
  Joined job;
  const Session::HeldLeasePtr lease = job.Acquire(5);
  job.head.completions.Next(absl::UnavailableError("draining"));
  job.head.completions.Next(absl::DeadlineExceededError("no answer"));
  REQUIRE(job.session->CompleteTraining(lease, 0, false).ok());
  REQUIRE(job.head.completions.asked().size() == 3);
  for (const CompleteRequest& request : job.head.completions.asked()) {
    CHECK(request.split() == 10);
    CHECK(request.without_push());
    CHECK_FALSE(request.abandon());
  }
  CHECK(job.session->CompleteTraining(lease, 0, false).ok());
  CHECK(job.head.completions.asked().size() == 3);
}

TEST_CASE("a lease whose completion is refused is lost; one that is completed is no longer named",
          "[session]") {
  Joined job;
  const Session::HeldLeasePtr refused = job.Acquire(5);
  job.head.completions.Next(absl::AbortedError("another worker has it"));
  CHECK(absl::IsAborted(job.session->CompleteTraining(refused, 0, true)));
  CHECK(job.session->lost(refused));
  const Session::HeldLeasePtr done = job.Acquire(6);
  for (uint32_t split = 0; split < 3; ++split) REQUIRE(job.session->CompleteTraining(done, split, true).ok());
  CHECK_FALSE(job.session->lost(done));
  CHECK(job.head.heartbeats.AwaitMore(2).leases_size() == 0);
}

TEST_CASE("a lease that is given back is said so, and not completed afterwards", "[session]") {
  Joined job;
  const Session::HeldLeasePtr lease = job.Acquire(5);
  job.session->Abandon(lease);
  CHECK(job.head.completions.asked().back().abandon());
  CHECK(absl::IsAborted(job.session->CompleteTraining(lease, 0, true)));
  CHECK(job.head.completions.asked().size() == 1);
}

TEST_CASE("whoever waits for a head is released when the session fails", "[session]") {
  Joined job;
  job.head.acquisitions.Otherwise(absl::UnavailableError("away"));
  absl::Status status;
  std::thread waits([&] { status = job.session->Acquire().status(); });
  job.head.acquisitions.AwaitMore(1);
  job.session->Fail(absl::DataLossError("of the test"));
  waits.join();
  CHECK_FALSE(status.ok());
}

TEST_CASE("steps begin where the head says, and no more are taken than a ledger can tell apart",
          "[session]") {
  Joined job;
  AcquireReply reply;
  *reply.mutable_lease() = ThreeSplits(5);
  reply.set_start_step(40);
  job.head.acquisitions.Next(reply);
  REQUIRE(job.session->Acquire().ok());
  for (uint64_t i = 0; i < limits::kPipelineDepthMax; ++i) CHECK(job.session->TakeStep() == 40 + i);
  CHECK(job.session->must_drain());
  CHECK_FALSE(job.session->TakeStep().has_value());
  CHECK(job.head.heartbeats.AwaitMore(2).next_step() == 40);
  job.session->Acknowledge(40);
  CHECK_FALSE(job.session->must_drain());
  CHECK(job.head.heartbeats.AwaitMore(2).next_step() == 41);
}

TEST_CASE("a push whose step was closed goes with the step that the head names", "[session]") {
  Joined job;
  REQUIRE(job.session->TakeStep() == 0);
  RejoinReply later;
  later.set_step(12);
  job.head.rejoins.Next(absl::UnavailableError("away"));
  job.head.rejoins.Next(later);
  const auto step = job.session->Rejoin(0);
  REQUIRE(step.ok());
  CHECK(*step == 12);
  CHECK(job.head.rejoins.asked().size() == 2);
  CHECK(job.session->TakeStep() == 13);
  job.head.rejoins.Next(absl::AbortedError("it counts no more"));
  CHECK(absl::IsAborted(job.session->Rejoin(12).status()));
}

TEST_CASE("a worker that leaves sends no heartbeat afterwards", "[session]") {
  Joined job;
  job.head.heartbeats.AwaitMore(1);
  job.session->Leave("done", "");
  const size_t beats = job.head.heartbeats.asked().size();
  REQUIRE(job.head.leaves.asked().size() == 1);
  CHECK(job.head.leaves.asked()[0].reason() == "done");
  job.session = nullptr;
  CHECK(job.head.heartbeats.asked().size() == beats);
}

}  // namespace recon
