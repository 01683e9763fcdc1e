// What a coordinator says of a job that does not move, in whatever phase it is.

#include <string>

#include "catch2/catch.hpp"
#include "tests/server/control/coordinator_job.h"

namespace recon {
namespace {

using Worker = CoordinatorJob::Worker;

void TrainAll(const Worker& worker) {
  for (Lease lease = worker.Acquire(); lease.kind() != LEASE_NONE; lease = worker.Acquire()) {
    REQUIRE(worker.Train(lease).ok());
  }
}

double SecondsOf(const Metrics& metrics, const std::string& metric) {
  const std::string text = metrics.Text();
  const std::string name = "\nrecon_server_" + metric + "_seconds ";
  const size_t at = text.find(name);
  REQUIRE(at != std::string::npos);
  return std::stod(text.substr(at + name.size()));
}

}  // namespace

TEST_CASE("status says for what a job that stands still waits", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin("w", 1);
  const Lease lease = worker.Acquire();
  for (int second = 0; second < 60; ++second) {
    REQUIRE(worker.Heartbeat(lease).ok());
    job.PassAndTick(absl::Seconds(1));
  }
  CHECK(job.Status().waits_for().find("it waits for a push of w (1 leases") == 0);
  CHECK(job.coordinator->Idle(job.now) >= absl::Seconds(59));
  CHECK(job.Status().standing_seconds() >= 59);
  CHECK(SecondsOf(job.metrics, "standing") >= 59);
  job.data_plane.log.full = true;
  CHECK(job.Status().waits_for().find("a snapshot that makes room in the push log") != std::string::npos);
  job.data_plane.log.full = false;
  REQUIRE(worker.Train(lease).ok());
  job.PassAndTick(absl::Seconds(1));
  CHECK(job.Status().waits_for().empty());
  CHECK(SecondsOf(job.metrics, "standing") == 0);
  CHECK(job.coordinator->Idle(job.now) < absl::Seconds(2));
}

TEST_CASE("a job that has begun and lacks a server stands, and all who ask are told for which one",
          "[coordinator]") {
  CoordinatorJob job(CoordinatorJob::AsynchronousJob(), /*with_others=*/true);
  job.others.the_state.complete = true;
  job.others.the_state.all_have_values = true;
  job.coordinator->OnServersChanged(job.now);
  const Worker worker = job.Begin("w", 1);
  REQUIRE(worker.Train(worker.Acquire()).ok());
  job.PassAndTick(absl::Seconds(1));
  CHECK(job.others.told.empty());
  job.others.the_state = ServersState();  // It was killed.
  const auto pass = [&](int seconds) {
    for (int second = 0; second < seconds; ++second) {
      REQUIRE(worker.Heartbeat().ok());
      job.PassAndTick(absl::Seconds(1));
    }
  };
  pass(9);
  CHECK(job.Status().standing_seconds() == 0);
  CHECK(worker.Heartbeat()->waits_for().empty());
  pass(3);
  CHECK(job.phase() == PHASE_RUNNING);
  CHECK(job.Status().standing_seconds() >= 10);
  CHECK(job.Status().waits_for() == "it waits for server 2, which is away");
  CHECK(SecondsOf(job.metrics, "standing") >= 10);
  CHECK(SecondsOf(job.metrics, "not_begun") == 0);
  const std::string told = worker.Heartbeat()->waits_for();
  CHECK(told.find("the job has not moved for 1") == 0);
  CHECK(told.find("s: it waits for server 2, which is away") != std::string::npos);
  CHECK(job.others.told == told);
  // Nothing is given out meanwhile, and no snapshot is taken.
  const int ticks = job.snapshots.ticks;
  CHECK(worker.Acquire().kind() == LEASE_NONE);
  pass(1);
  CHECK(job.snapshots.ticks == ticks);
}

TEST_CASE("a job to which nobody has come says what it waits for, and does not stand", "[coordinator]") {
  CoordinatorJob job;
  for (int second = 0; second < 12; ++second) job.PassAndTick(absl::Seconds(1));
  CHECK(job.Status().standing_seconds() == 0);
  CHECK(job.Status().not_begun_seconds() >= 10);
  CHECK(job.Status().waits_for() == "it waits for a worker: none has come yet");
  CHECK(SecondsOf(job.metrics, "standing") == 0);
  CHECK(SecondsOf(job.metrics, "not_begun") >= 10);
  const Worker worker = job.Join("w", 1);
  REQUIRE(worker.TryAcquire()->needs_initial_values());
  CHECK(job.Status().waits_for() == "it waits for the initial parameters, which worker w was asked for");
  job.data_plane.BringValues();
  job.snapshots.the_status.set_under_way_seconds(12);
  CHECK(job.Status().waits_for().find("it waits for a snapshot") == 0);
  CHECK(job.Status().waits_for().find("under way for 12s") != std::string::npos);
  job.snapshots.Publish(job.now);
  job.PassAndTick(absl::Seconds(1));
  CHECK(job.Status().not_begun_seconds() == 0);
  CHECK(job.Status().waits_for().empty());
}

TEST_CASE("a job whose last snapshot does not come stands", "[coordinator]") {
  CoordinatorJob job;
  const Worker worker = job.Begin("w", 1);
  TrainAll(worker);
  for (int second = 0; second < 12; ++second) {
    REQUIRE(worker.Heartbeat().ok());
    job.PassAndTick(absl::Seconds(1));
  }
  REQUIRE(job.snapshots.under_way() == "final");
  CHECK(job.Status().standing_seconds() >= 10);
  CHECK(job.Status().waits_for().find("it waits for a snapshot") == 0);
  job.snapshots.Publish(job.now);
  job.PassAndTick(absl::Seconds(1));
  CHECK(job.phase() == PHASE_FINISHED);
  CHECK(job.Status().standing_seconds() == 0);
}

}  // namespace recon
