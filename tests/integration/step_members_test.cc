// Whom a synchronous step waits for, and how much is in it: newcomers, quorums, steps of constant size.

#include <atomic>
#include <map>
#include <string>
#include <thread>

#include "catch2/catch.hpp"
#include "tests/integration/in_process_job.h"
#include "tests/integration/job_checks.h"
#include "tests/support/process.h"

namespace recon {
namespace {

// Workers that each have a stop of their own.
class Crew {
 public:
  ~Crew() { CHECK(Stop()); }

  void Add(const WorkerFlags& flags) {
    members_.emplace_back();
    Member* member = &members_.back();
    member->thread = std::thread([member, flags] { member->status = RunWorker(flags, &member->stop); });
  }
  void StopOne(size_t i) {
    members_[i].stop = true;
    members_[i].thread.join();
  }
  // Waits for the job's end, or stops them first; whether all of them went in good order.
  bool Wait() {
    bool good = true;
    for (Member& member : members_) {
      if (member.thread.joinable()) member.thread.join();
      if (!member.status.ok()) UNSCOPED_INFO(member.status);
      good = good && member.status.ok();
    }
    return good;
  }
  bool Stop() {
    for (Member& member : members_) member.stop = true;
    return Wait();
  }

 private:
  struct Member {
    std::atomic<bool> stop{false};
    absl::Status status;
    std::thread thread;
  };
  std::deque<Member> members_;
};

std::map<std::string, MemberStatus> MembersOf(const StatusReply& status) {
  std::map<std::string, MemberStatus> members;
  for (const MemberStatus& member : status.members()) members[member.name()] = member;
  return members;
}

// A worker that takes work, is heard of, and computes nothing.
class HungWorker {
 public:
  HungWorker(ControlClient* control, const std::string& name) : control_(control) {
    const auto registered = control_->Register(RequestOf(name));
    REQUIRE(registered.ok());
    identity_.set_worker(registered->worker());
    identity_.set_incarnation(PlayedSecret().incarnation().value());
    identity_.set_cluster_epoch(registered->cluster_epoch());
  }
  bool TakesWork() {
    AcquireRequest request;
    *request.mutable_identity() = identity_;
    const auto acquired = control_->Acquire(request);
    if (acquired.ok() && acquired->lease().kind() == LEASE_TRAIN) lease_ = acquired->lease().lease();
    return lease_ != 0;
  }
  bool IsHeard() {
    HeartbeatRequest request;
    *request.mutable_identity() = identity_;
    request.add_leases(lease_);
    return control_->Heartbeat(request).ok();
  }
  void Leave() {
    LeaveRequest request;
    *request.mutable_identity() = identity_;
    CHECK(control_->Leave(request).ok());
  }
  // Its push has come too late for its step.
  absl::StatusOr<RejoinReply> Rejoin() {
    RejoinRequest request;
    *request.mutable_identity() = identity_;
    return control_->Rejoin(request);
  }

 private:
  ControlClient* control_;
  WorkerIdentity identity_;
  uint64_t lease_ = 0;
};

}  // namespace

TEST_CASE("nobody waits for the first push of a worker that joins and hangs", "[job][steps]") {
  const int bound = GENERATE(0, 2);
  InProcessJob job(bound);
  job.flags.job.set_data_epochs(100'000);
  job.StartServer();
  ControlClient control = job.Control();
  Crew crew;
  crew.Add(job.MakeWorker("a"));
  crew.Add(job.MakeWorker("b"));
  REQUIRE(Eventually([&] { return MembersOf(*control.Status())["b"].pushes() > 5; }));
  HungWorker hung(&control, "hung");
  REQUIRE(Eventually([&] { return hung.TakesWork(); }));
  for (int i = 0; i < 3; ++i) {
    const uint64_t frontier = control.Status()->frontier_step();
    CHECK(Eventually([&] { return hung.IsHeard() && control.Status()->frontier_step() > frontier + 20; }));
  }
  CHECK(MembersOf(*control.Status())["hung"].state() == MEMBER_IDLE);

  // With a bound what it pushes would count at once: there is nothing to ask.
  if (bound > 0) {
    CHECK(absl::IsAborted(hung.Rejoin().status()));
    hung.Leave();
    CHECK(crew.Stop());
    return;
  }
  // With something to push it takes part, and is waited for.
  const auto rejoined = hung.Rejoin();
  REQUIRE(rejoined.ok());
  CHECK(Eventually([&] { return hung.IsHeard() && control.Status()->frontier_step() >= rejoined->step(); }));
  CHECK(MembersOf(*control.Status())["hung"].state() == MEMBER_ACTIVE);
  CHECK(control.Status()->frontier_step() == rejoined->step());
  hung.Leave();
  CHECK(Eventually([&] { return control.Status()->frontier_step() > rejoined->step() + 20; }));
  CHECK(absl::IsFailedPrecondition(hung.Rejoin().status()));
  CHECK(crew.Stop());
}

TEST_CASE("a worker that joins a synchronous job pushes what it computed first into the step that is open",
          "[job][steps]") {
  InProcessJob job(0);
  job.flags.job.set_data_epochs(40);
  job.StartServer();
  ControlClient control = job.Control();
  Crew crew;
  WorkerFlags slow = job.MakeWorker("slow");
  slow.step_time = absl::Milliseconds(5);
  crew.Add(slow);
  REQUIRE(Eventually([&] { return control.Status()->frontier_step() > 5; }));
  WorkerFlags late = job.MakeWorker("late");
  late.step_time = absl::Milliseconds(100);  // Steps have gone by when its first batch is there.
  crew.Add(late);
  REQUIRE(Eventually([&] { return MembersOf(*control.Status())["late"].pushes() > 3; }));
  crew.StopOne(1);
  CHECK(crew.Wait());
  CHECK(CompletedOnce(*control.Completions(), 40, kSamples));
  // Nothing was computed twice: each split has four pushes, the last of an epoch two. (Stopping may give back
  // one.)
  const StatusReply status = *control.Status();
  CHECK(status.pushes() >= 40 * 42);
  CHECK(status.pushes() <= 40 * 42 + 4);
}

TEST_CASE("with a bound, too, a worker that joins loses no push and sends none twice", "[job][steps]") {
  InProcessJob job(2);
  job.flags.job.set_data_epochs(40);
  job.StartServer();
  ControlClient control = job.Control();
  Crew crew;
  WorkerFlags slow = job.MakeWorker("slow");
  slow.step_time = absl::Milliseconds(5);
  crew.Add(slow);
  REQUIRE(Eventually([&] { return control.Status()->frontier_step() > 5; }));
  for (const char* name : {"b", "c", "d"}) crew.Add(job.MakeWorker(name));
  CHECK(crew.Wait());
  CHECK(CompletedOnce(*control.Completions(), 40, kSamples));
  CHECK(control.Status()->pushes() == 40 * 42);
}

TEST_CASE("a quorum closes steps without a slow worker, whose pushes go into later ones", "[job][steps]") {
  const bool in_rounds = GENERATE(false, true);
  InProcessJob job(0, 3);
  if (in_rounds) job.MakeLocal(2, 1);
  job.flags.policy.set_quorum(2);
  job.flags.policy.set_grace_ms(5);
  job.flags.job.set_data_epochs(30);
  job.StartServer();
  ControlClient control = job.Control();
  Crew crew;
  for (const char* name : {"a", "b", "slow"}) {
    WorkerFlags worker = job.MakeWorker(name);
    worker.step_time = absl::Milliseconds(std::string(name) == "slow" ? 60 : 2);
    crew.Add(worker);
  }
  CHECK(crew.Wait());
  const StatusReply status = *control.Status();
  CHECK(status.phase() == PHASE_FINISHED);
  CHECK(CompletedOnce(*control.Completions(), 30, kSamples));
  // Not one push was lost or came twice.
  CHECK(status.pushes() == 30 * (in_rounds ? 21 : 42));
  std::map<std::string, MemberStatus> members = MembersOf(status);
  CHECK(members["slow"].pushes() > 4);
  CHECK(members["slow"].late_steps() > 2);
  CHECK(members["a"].late_steps() < members["slow"].late_steps());
  CHECK(members["a"].pushes() > 3 * members["slow"].pushes());
  CHECK(status.evaluations(29).accuracy() > 0.9);
}

TEST_CASE("a step keeps its samples when workers go, and when they come", "[job][steps]") {
  InProcessJob job(0, 4);
  job.flags.policy.set_step_samples_constant(true);
  job.flags.job.set_split_samples(128);
  job.flags.job.set_data_epochs(100'000);
  job.StartServer();
  ControlClient control = job.Control();
  Crew crew;
  for (const char* name : {"a", "b", "c", "d"}) crew.Add(job.MakeWorker(name));
  // So many batches has each of those who are there; and that is what steps are made of: splits of 128
  // samples, the last of an epoch of 26.
  const auto settled = [&](const std::string& shares) {
    REQUIRE(Eventually([&] {
      std::string seen;
      const StatusReply status = *control.Status();  // Outlives the loop.
      for (const MemberStatus& member : status.members()) {
        if (member.state() != MEMBER_GONE) absl::StrAppend(&seen, member.local_steps(), " ");
      }
      return seen == shares;
    }));
    const uint64_t settled_at = control.Status()->frontier_step() + 30;
    REQUIRE(Eventually([&] { return control.Status()->frontier_step() > settled_at; }));
    const StatusReply first = *control.Status();
    REQUIRE(Eventually([&] { return control.Status()->frontier_step() > first.frontier_step() + 300; }));
    const StatusReply second = *control.Status();
    const auto steps = static_cast<double>(second.frontier_step() - first.frontier_step());
    return static_cast<double>(second.samples_completed() - first.samples_completed()) / steps;
  };
  const double undisturbed = settled("1 1 1 1 ");
  CHECK(undisturbed > 90);
  crew.StopOne(1);
  crew.StopOne(2);
  const double half = settled("2 2 ");
  CHECK(std::abs(half - undisturbed) < 0.1 * undisturbed);
  crew.Add(job.MakeWorker("e"));
  const double three = settled("2 1 1 ");
  CHECK(std::abs(three - undisturbed) < 0.15 * undisturbed);
  CHECK(crew.Stop());
}

}  // namespace recon
