#include "server/control/auto_policy.h"

#include "catch2/catch.hpp"
#include "tests/server/control/fake_ports.h"

namespace recon {
namespace {

constexpr WorkerId kWorker(1);

PolicySettings Auto() {
  PolicySettings settings;
  settings.set_sync("auto");
  settings.set_auto_local_steps_max(16);
  return settings;
}

// A job of one worker that waits for its link most of the time, which local steps would help.
class SlowLink {
 public:
  // Half a second passes, with a step and its push. Returns what is to be put in force.
  std::optional<PolicySettings> Step(AutoPolicy* policy) {
    now += absl::Milliseconds(500);
    work_.set_steps(work_.steps() + 1);
    work_.set_step_seconds(work_.step_seconds() + 0.5);
    work_.set_compute_seconds(work_.compute_seconds() + 0.05);
    work_.set_stall_seconds(work_.stall_seconds() + 0.45);
    work_.set_exchange_seconds(work_.exchange_seconds() + 0.45);
    work_.set_pushes(work_.pushes() + 1);
    data_plane.Push(kWorker);
    REQUIRE(policy->Report(kWorker, work_, /*loss=*/1).ok());
    return policy->Tick(now, data_plane, /*codec_settled=*/true);
  }
  // Until a policy is to be put in force; none after a minute.
  std::optional<PolicySettings> UntilChosen(AutoPolicy* policy) {
    for (int step = 0; step < 120; ++step) {
      if (const auto chosen = Step(policy)) return chosen;
    }
    return std::nullopt;
  }

  absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  FakeDataPlane data_plane;

 private:
  StepWork work_;
};

}  // namespace

TEST_CASE("auto chooses local steps where workers wait for the link, once", "[auto_policy]") {
  AutoPolicy policy(Auto());
  SlowLink job;
  CHECK(policy.reason() == "to begin with");
  const std::optional<PolicySettings> chosen = job.UntilChosen(&policy);
  REQUIRE(chosen);
  CHECK(chosen->local_steps() == 4);
  CHECK(chosen->sync() == "asp");
  CHECK(policy.reason().find("workers wait for the link") == 0);
  policy.Tried(absl::OkStatus(), job.now);
  for (int step = 0; step < 4; ++step) CHECK_FALSE(job.Step(&policy));
}

TEST_CASE("a choice that cannot be put in force is tried again after half a minute", "[auto_policy]") {
  AutoPolicy policy(Auto());
  SlowLink job;
  const std::optional<PolicySettings> chosen = job.UntilChosen(&policy);
  REQUIRE(chosen);
  const absl::Time tried = job.now;
  policy.Tried(absl::UnavailableError("the disk is full"), tried);
  CHECK_FALSE(policy.Tick(tried + absl::Milliseconds(29'999), job.data_plane, true));
  const std::optional<PolicySettings> again = policy.Tick(tried + absl::Seconds(30), job.data_plane, true);
  REQUIRE(again);
  CHECK(again->local_steps() == chosen->local_steps());
  policy.Tried(absl::OkStatus(), tried + absl::Seconds(30));
  CHECK_FALSE(policy.Tick(tried + absl::Seconds(61), job.data_plane, true));
}

TEST_CASE("a policy that the user has chosen stays", "[auto_policy]") {
  AutoPolicy policy(Auto());
  SlowLink job;
  REQUIRE(job.UntilChosen(&policy));
  policy.Tried(absl::UnavailableError("the disk is full"), job.now);
  PolicySettings bsp;
  bsp.set_sync("bsp");
  policy.Set(bsp);
  CHECK(policy.reason().empty());
  CHECK_FALSE(job.UntilChosen(&policy));
  // Left to the server again, it begins anew: what had failed before is not tried.
  policy.Set(Auto());
  CHECK(policy.reason() == "to begin with");
  CHECK_FALSE(policy.Tick(job.now + absl::Minutes(1), job.data_plane, true));
}

}  // namespace recon
