#include "server/tuning/policy_controller.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "server/control/policy.h"
#include "server/tuning/policy_tuner.h"

namespace recon {
namespace {

using Choice = PolicyController::Choice;

PolicyController::Window Window(double waiting, double link, double loss = 1) {
  PolicyController::Window window;
  window.fastest_seconds = 0.1;
  window.slowest_seconds = 0.4;
  window.waiting_share = waiting;
  window.link_share = link;
  window.loss = loss;
  return window;
}

void ObserveTimes(PolicyController* controller, int times, const PolicyController::Window& window) {
  for (int i = 0; i < times; ++i) controller->Observe(window);
}

}  // namespace

TEST_CASE("a bound goes when workers wait for slower ones, and not for one window's sake",
          "[policy_tuning]") {
  PolicyController controller({});
  CHECK(controller.choice() == Choice{2, 0});
  ObserveTimes(&controller, 100, Window(0.01, 0.9));
  CHECK(controller.choice() == Choice{2, 0});
  CHECK(!controller.Observe(Window(0.6, 0)));
  CHECK(!controller.Observe(Window(0, 0)));
  CHECK(!controller.Observe(Window(0.6, 0)));
  CHECK(controller.Observe(Window(0.6, 0)));
  CHECK(controller.choice() == Choice{-1, 0});
  CHECK(controller.reason() ==
        "workers wait for slower ones 60 % of their time (a step is computed in 100 to 400 ms): no bound");
  ObserveTimes(&controller, 100, Window(0.6, 0.9));
  CHECK(controller.choice() == Choice{-1, 0});
}

TEST_CASE("the user's limits are never passed", "[policy_tuning]") {
  for (const int bound : {-1, 0, 1, 2, 5}) {
    for (const uint32_t steps : {0u, 1u, 4u, 20u}) {
      CAPTURE(bound, steps);
      PolicyController controller({bound, steps});
      for (int i = 0; i < 50; ++i) {
        controller.Observe(Window(0.7, 0.7));
        const Choice& choice = controller.choice();
        CHECK((bound < 0 || (choice.bound >= 0 && choice.bound <= bound)));
        CHECK(choice.local_steps <= steps);
      }
      CHECK(controller.choice() == Choice{bound, steps});
    }
  }
}

TEST_CASE("local steps are for links that no codec helps", "[policy_tuning]") {
  PolicyController controller({-1, 16});
  PolicyController::Window window = Window(0, 0.8);
  window.codec_settled = false;
  ObserveTimes(&controller, 10, window);
  CHECK(controller.choice() == Choice{2, 0});
  window.codec_settled = true;
  ObserveTimes(&controller, 2, window);
  CHECK(controller.choice() == Choice{-1, 4});
  CHECK(controller.reason() == "workers wait for the link 80 % of their time: 4 local steps, no bound");
  // Not before the step is known to be good.
  ObserveTimes(&controller, 6, Window(0, 0.6));
  CHECK(controller.choice() == Choice{-1, 4});
  ObserveTimes(&controller, 10, Window(0, 0.3));
  CHECK(controller.choice() == Choice{-1, 4});
  ObserveTimes(&controller, 10, Window(0, 0.6));
  CHECK(controller.choice() == Choice{-1, 16});
}

TEST_CASE("when the loss rises it goes back, and does not try that again", "[policy_tuning]") {
  PolicyController controller({-1, 4});
  ObserveTimes(&controller, 2, Window(0, 0.9, 1.0));
  REQUIRE(controller.choice() == Choice{-1, 4});
  // One bad window is none.
  ObserveTimes(&controller, 2, Window(0, 0.9, 3.0));
  controller.Observe(Window(0, 0.9, 1.0));
  CHECK(controller.choice() == Choice{-1, 4});
  ObserveTimes(&controller, 2, Window(0, 0.9, 2.0));
  CHECK(controller.Observe(Window(0, 0.9, 2.0)));
  // To where it was, not to the rung between.
  CHECK(controller.choice() == Choice{2, 0});
  CHECK(
      absl::StartsWith(controller.reason(), "the loss has risen from 1 to 2, gradients are 0.0 updates old"));
  ObserveTimes(&controller, 100, Window(0.5, 0.9, 1.0));
  CHECK(controller.choice() == Choice{2, 0});
}

TEST_CASE("a loss that was high before, is uneven near its end, or rises much later condemns no step",
          "[policy_tuning]") {
  {
    PolicyController controller({});
    ObserveTimes(&controller, 10, Window(0, 0, 1.0));
    ObserveTimes(&controller, 4, Window(0, 0, 5.0));
    ObserveTimes(&controller, 20, Window(0.5, 0, 5.0));
    CHECK(controller.choice() == Choice{-1, 0});
    ObserveTimes(&controller, 20, Window(0.5, 0, 9.0));
    CHECK(controller.choice() == Choice{-1, 0});
  }
  {
    PolicyController controller({});
    ObserveTimes(&controller, 1, Window(0, 0, 2.0));
    ObserveTimes(&controller, 10, Window(0, 0, 1e-6));
    ObserveTimes(&controller, 2, Window(0.5, 0, 1e-6));
    ObserveTimes(&controller, 6, Window(0.5, 0, 0.05));
    CHECK(controller.choice() == Choice{-1, 0});
  }
  {
    PolicyController controller({});  // A loss may be a negative likelihood.
    ObserveTimes(&controller, 20, Window(0.5, 0, -3.0));
    CHECK(controller.choice() == Choice{-1, 0});
  }
}

TEST_CASE("time is shared out between slower workers and the link by what replies waited for",
          "[policy_tuning]") {
  PolicyTuner tuner({});
  absl::Time now = absl::FromUnixSeconds(1000);
  StepWork fast, slow;
  std::map<WorkerId, PolicyTuner::Pushes> pushes;
  bool changed = false;
  int seconds = 0;
  for (; seconds < 60 && !changed; ++seconds, now += absl::Seconds(1)) {
    // The slow one computes for a second; the fast one for a tenth, and waits for it.
    fast.set_steps(fast.steps() + 1);
    fast.set_step_seconds(fast.step_seconds() + 1);
    fast.set_compute_seconds(fast.compute_seconds() + 0.1);
    fast.set_stall_seconds(fast.stall_seconds() + 0.9);
    fast.set_exchange_seconds(fast.exchange_seconds() + 0.9);
    slow.set_steps(slow.steps() + 1);
    slow.set_step_seconds(slow.step_seconds() + 1);
    slow.set_compute_seconds(slow.compute_seconds() + 1);
    pushes[WorkerId(1)].waiting_seconds += 0.8;
    for (const uint32_t worker : {1, 2}) ++pushes[WorkerId(worker)].count;
    REQUIRE(tuner.Report(WorkerId(1), fast, 0.5).ok());
    REQUIRE(tuner.Report(WorkerId(2), slow, 0.5).ok());
    changed = tuner.Due(now) && tuner.Tick(now, pushes, true);
  }
  REQUIRE(changed);
  CHECK(seconds <= 10);
  // 0.9 * 0.8 / 0.9 of one worker's time, nothing of the other's.
  CHECK(absl::StrContains(tuner.reason(),
                          "slower ones 40 % of their time (a step is computed in 100 to 1000 ms)"));
  CHECK(tuner.choice() == Choice{-1, 0});
}

TEST_CASE("reports that are no numbers are refused, and workers that go spoil nothing", "[policy_tuning]") {
  PolicyTuner tuner({});
  StepWork work;
  CHECK(absl::IsInvalidArgument(tuner.Report(WorkerId(1), work, std::nan(""))));
  work.set_stall_seconds(std::numeric_limits<double>::infinity());
  CHECK(absl::IsInvalidArgument(tuner.Report(WorkerId(1), work, 1)));
  work.set_stall_seconds(0);
  REQUIRE(tuner.Report(WorkerId(1), work, 1).ok());
  REQUIRE(tuner.Report(WorkerId(2), work, 1).ok());
  absl::Time now = absl::FromUnixSeconds(1000);
  CHECK(!tuner.Tick(now, {}, true));
  tuner.Forget(WorkerId(2));
  CHECK(!tuner.Tick(now += absl::Minutes(2), {}, true));
  CHECK(!tuner.Tick(now += absl::Minutes(2), {}, true));
  tuner.Forget(WorkerId(1));
  CHECK(!tuner.Due(now + absl::Minutes(2)));
}

TEST_CASE("auto's settings become those of what it chooses", "[policy_tuning]") {
  PolicyBase base;
  PolicySettings settings;
  settings.set_sync("auto");
  settings.set_auto_local_steps_max(8);
  settings.set_outer_learning_rate(0.5);
  settings.set_staleness_correction("gap-aware:4");
  const auto policy = ResolvePolicy(settings, base);
  REQUIRE(policy.ok());
  CHECK(policy->rules.bound == 2);
  CHECK(policy->rules.correction.versions == 4);
  CHECK(!policy->job.has_local());
  CHECK(policy->job.policy().sync() == "ssp:2");
  CHECK(RoundSamples(policy->job, 10) == 0);
  CHECK(absl::IsInvalidArgument(CheckRound(settings, *policy, 10, 79)));
  const auto local = ResolvePolicy(Chosen(settings, {-1, 8}), base);
  REQUIRE(local.ok());
  CHECK(local->rules.bound == -1);
  CHECK(local->rules.correction.versions == 0);
  CHECK(local->job.local().steps() == 8);
  CHECK(local->rules.optimizer.learning_rate == 0.5);
  settings.set_auto_bound_max(0);
  CHECK(ResolvePolicy(settings, base)->rules.bound == 0);

  const auto refused = [&](const char* why) {
    const absl::Status status = ResolvePolicy(settings, base).status();
    INFO(status);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StrContains(status.message(), why));
  };
  settings.set_auto_local_steps_max(0);
  refused("--outer-optimizer and its companions");
  settings.set_auto_local_steps_max(8);
  settings.set_auto_bound_max(0);
  settings.set_staleness_correction("most");
  refused("--staleness-correction most");
  settings.set_staleness_correction(std::string(300, 'x'));
  refused("has 300 bytes");
  settings.clear_staleness_correction();
  settings.set_outer_optimizer("nesterov");
  refused("--outer-optimizer nesterov: with --sync auto it is sgd");
  settings.clear_outer_optimizer();
  settings.set_local_steps(3);
  refused("--sync auto chooses them");
  settings.clear_local_steps();
  settings.set_auto_bound_max(1001);
  refused("--auto-bound-max 1001");
  settings.set_auto_bound_max(1);
  settings.set_sync("asp");
  refused("are for --sync auto");
}

}  // namespace recon
