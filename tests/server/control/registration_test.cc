#include "server/control/registration.h"

#include <functional>
#include <utility>

#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "tests/server/control/coordinator_job.h"

namespace recon {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

// Workers 1 to `workers`, each hands out parameters at "w1:1" and so on, and has computed a step.
Membership Givers(uint32_t workers) {
  Membership members({absl::Seconds(1), absl::Seconds(3)});
  for (uint32_t number = 1; number <= workers; ++number) {
    Membership::Member member;
    member.name = "w" + std::to_string(number);
    member.incarnation = Incarnation(number);
    member.serves_parameters = member.name + ":1";
    member.peer = "host-" + member.name;
    REQUIRE(members.Admit(WorkerId(number), member, kNow).ok());
    members.Find(WorkerId(number))->progress.set_steps(1);
  }
  return members;
}

RegisterRequest Request(const std::string& name, uint64_t incarnation) {
  return CoordinatorJob::Request(name, incarnation);
}

}  // namespace

TEST_CASE("each field of a registration has its limit, which is allowed", "[registration]") {
  const std::string longest(limits::kNameBytesMax, 'n');
  const std::string too_long = longest + "n";
  // At the limit, and beyond it.
  using Change = std::function<void(RegisterRequest*)>;
  const std::pair<Change, Change> fields[] = {
      {[&](auto* r) { r->set_name(longest); }, [&](auto* r) { r->set_name(too_long); }},
      {[&](auto* r) { r->set_name("n"); }, [&](auto* r) { r->set_name(""); }},
      {[&](auto* r) { r->set_name("\xc3\xa9\xe6\xbc\xa2"); }, [&](auto* r) { r->set_name("w\xe2\x80\xae"); }},
      {[&](auto* r) { r->set_incarnation(1); }, [&](auto* r) { r->set_incarnation(0); }},
      {[&](auto* r) { r->set_device(longest); }, [&](auto* r) { r->set_device(too_long); }},
      {[&](auto* r) { r->set_codec(longest); }, [&](auto* r) { r->set_codec(too_long); }},
      {[&](auto* r) { r->set_data_fingerprint(longest); },
       [&](auto* r) { r->set_data_fingerprint(too_long); }},
      {[&](auto* r) { r->set_next_step(limits::kStepMax); },
       [&](auto* r) { r->set_next_step(limits::kStepMax + 1); }},
      {[&](auto* r) { r->set_first_new_step(limits::kStepMax); },
       [&](auto* r) { r->set_first_new_step(limits::kStepMax + 1); }},
      {[&](auto* r) { r->set_train_samples(limits::kSamplesMax); },
       [&](auto* r) { r->set_train_samples(limits::kSamplesMax + 1); }},
      {[&](auto* r) { r->set_test_samples(limits::kSamplesMax); },
       [&](auto* r) { r->set_test_samples(limits::kSamplesMax + 1); }},
      {[&](auto* r) { r->set_serves_parameters("host:1"); },
       [&](auto* r) { r->set_serves_parameters("host"); }},
      {[&](auto* r) { r->add_proposed()->set_name(longest); },
       [&](auto* r) { r->add_proposed()->set_name(too_long); }},
      {[&](auto* r) { r->add_proposed()->set_name("n"); }, [&](auto* r) { r->add_proposed(); }},
      {[&](auto* r) {
         while (r->held_size() < static_cast<int>(limits::kLeasesPerWorkerMax)) r->add_held();
       },
       [&](auto* r) {
         while (r->held_size() <= static_cast<int>(limits::kLeasesPerWorkerMax)) r->add_held();
       }},
      {[&](auto*) {}, [&](auto* r) { r->mutable_model()->clear_tensors(); }},
  };
  int field = 0;
  for (const auto& [at_limit, beyond] : fields) {
    INFO("field " << field++);
    RegisterRequest request = Request("w", 1);
    at_limit(&request);
    CHECK(CheckRegistration(request) == absl::OkStatus());
    request = Request("w", 1);
    beyond(&request);
    CHECK(absl::IsInvalidArgument(CheckRegistration(request)));
  }
}

TEST_CASE("each field of a heartbeat has its limit, which is allowed", "[registration]") {
  const std::string longest(limits::kProgressTextBytesMax, 'c');
  using Change = std::function<void(HeartbeatRequest*)>;
  const std::pair<Change, Change> fields[] = {
      {[&](auto* r) { r->set_next_step(limits::kStepMax); },
       [&](auto* r) { r->set_next_step(limits::kStepMax + 1); }},
      {[&](auto* r) { r->mutable_progress()->set_codec(longest); },
       [&](auto* r) { r->mutable_progress()->set_codec(longest + "c"); }},
      {[&](auto* r) { r->mutable_progress()->set_diverged(longest); },
       [&](auto* r) { r->mutable_progress()->set_diverged(longest + "c"); }},
      {[&](auto* r) { r->mutable_progress()->set_precision(std::string(limits::kNameBytesMax, 'p')); },
       [&](auto* r) { r->mutable_progress()->set_precision(std::string(limits::kNameBytesMax + 1, 'p')); }},
      {[&](auto* r) {
         while (r->leases_size() < static_cast<int>(limits::kLeasesPerWorkerMax)) r->add_leases(1);
       },
       [&](auto* r) {
         while (r->leases_size() <= static_cast<int>(limits::kLeasesPerWorkerMax)) r->add_leases(1);
       }},
      {[&](auto* r) { r->mutable_progress()->mutable_device_status()->set_utilization(1); },
       [&](auto* r) { r->mutable_progress()->mutable_device_status()->set_utilization(2); }},
  };
  int field = 0;
  for (const auto& [at_limit, beyond] : fields) {
    INFO("field " << field++);
    HeartbeatRequest request;
    at_limit(&request);
    CHECK(CheckHeartbeat(request) == absl::OkStatus());
    request.Clear();
    beyond(&request);
    CHECK(absl::IsInvalidArgument(CheckHeartbeat(request)));
  }
}

TEST_CASE("a worker that has steps behind it, acknowledged or not, has computed", "[registration]") {
  RegisterRequest request = Request("w", 9);
  CHECK_FALSE(MemberOf(request, "here").computes);
  request.set_first_new_step(3);
  CHECK(MemberOf(request, "here").computes);
  CHECK(FirstNewStep(request) == 3);
  request.set_next_step(5);
  const Membership::Member member = MemberOf(request, "here");
  CHECK(FirstNewStep(request) == 5);
  CHECK(member.next_step == 5);
  CHECK(member.name == "w");
  CHECK(member.incarnation == Incarnation(9));
  CHECK(member.peer == "here");
}

TEST_CASE("a name is free for its own process, and when its holder is silent or gone", "[registration]") {
  Membership members = Givers(1);
  ConnectedProcesses connected;
  connected.Opened(Incarnation(1));
  const auto check = [&](uint64_t incarnation, absl::Time now) {
    return CheckName(Request("w1", incarnation), WorkerId(1), "there", &members, &connected, now);
  };
  CHECK(check(1, kNow).ok());
  const absl::Status held = check(2, kNow + absl::Milliseconds(500));
  CHECK(absl::IsAborted(held));
  CHECK(std::string(held.message()).find("at host-w1, which is connected and was heard of 500ms ago") !=
        std::string::npos);
  CHECK(members.Find(WorkerId(1))->rival == Incarnation(2));
  CHECK(check(2, kNow + absl::Milliseconds(1001)).ok());
  members.Remove(WorkerId(1));
  CHECK(check(2, kNow).ok());
}

TEST_CASE("a holder that has no connection is replaced, unless the name was drawn", "[registration]") {
  Membership members = Givers(1);
  const ConnectedProcesses connected;
  RegisterRequest request = Request("w1", 2);
  CHECK(CheckName(request, WorkerId(1), "there", &members, &connected, kNow).ok());
  CHECK(CheckName(request, WorkerId(1), "there", &members, nullptr, kNow).ok());
  request.set_name_is_drawn(true);
  CHECK(absl::IsAlreadyExists(CheckName(request, WorkerId(1), "there", &members, &connected, kNow)));
  CHECK(CheckName(request, WorkerId(2), "there", &members, &connected, kNow).ok());
}

TEST_CASE("who joins is told of those that have parameters and are heard of, each first for some",
          "[registration]") {
  Membership members = Givers(5);
  members.Find(WorkerId(2))->progress.set_steps(0);
  members.Find(WorkerId(3))->serves_parameters.clear();
  members.Remove(WorkerId(4));
  CHECK(PeersFor(WorkerId(1), members, kNow) == std::vector<std::string>{"w5:1"});
  CHECK(PeersFor(WorkerId(8), members, kNow) == std::vector<std::string>{"w1:1", "w5:1"});
  CHECK(PeersFor(WorkerId(9), members, kNow) == std::vector<std::string>{"w5:1", "w1:1"});
  CHECK(PeersFor(WorkerId(9), members, kNow + absl::Milliseconds(1001)).empty());
}

TEST_CASE("who joins is told of so many at most", "[registration]") {
  const Membership members = Givers(limits::kPeersMax + 2);
  CHECK(PeersFor(WorkerId(1), members, kNow).size() == limits::kPeersMax);
}

}  // namespace recon
