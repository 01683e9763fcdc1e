#include "tools/bench/simulation.h"

#include <cstdlib>
#include <random>
#include <string>

#include "catch2/catch.hpp"

namespace recon {
namespace {

// RECON_SIMULATION_SEEDS=10000 for a long run.
uint64_t Seeds() {
  const char* text = std::getenv("RECON_SIMULATION_SEEDS");
  return text == nullptr ? 100 : std::strtoull(text, nullptr, 10);
}

// A small cluster in trouble; which trouble, and under which bound, the seed says.
SimulationOptions Trouble(uint64_t seed) {
  SimulationOptions options;
  options.seed = seed;
  options.workers = 2 + static_cast<int>(seed % 7);
  const int bounds[] = {-1, 0, 1, 3};
  std::mt19937_64 random(~seed);  // Another course than the simulation's own.
  options.bound = bounds[random() % 4];
  options.lease_target = random() % 2 == 0 ? 0 : 4;
  options.lost_calls = random() % 3 == 0 ? 0.05 : 0;
  options.kills_per_second = random() % 5 == 0 ? 0 : 0.3;
  options.stops_per_second = random() % 2 == 0 ? 0.2 : 0;
  options.server_kills_per_second = random() % 3 == 1 ? 0.1 : 0;
  return options;
}

}  // namespace

TEST_CASE("churn: every split once, no lease in two hands, nobody too far ahead, no hang", "[simulation]") {
  uint64_t kills = 0, stops = 0, server_kills = 0, redone = 0;
  for (uint64_t seed = 1; seed <= Seeds(); ++seed) {
    INFO("seed " << seed);
    const SimulationResult result = Simulate(Trouble(seed));
    REQUIRE(result.violation == "");
    kills += result.kills;
    stops += result.stops;
    server_kills += result.server_kills;
    redone += result.redone_steps;
  }
  // There was trouble.
  CHECK(kills > Seeds());
  CHECK(stops > Seeds() / 2);
  CHECK(server_kills > Seeds() / 4);
  CHECK(redone > Seeds());
}

TEST_CASE("one seed, one course of events", "[simulation]") {
  const SimulationResult one = Simulate(Trouble(7));
  const SimulationResult two = Simulate(Trouble(7));
  CHECK(one.seconds == two.seconds);
  CHECK(one.pushes == two.pushes);
  CHECK(Simulate(Trouble(8)).seconds != one.seconds);
}

TEST_CASE("mistakes in the control plane are found", "[simulation]") {
  using Planted = SimulationOptions::Planted;
  const auto found = [](Planted planted, const std::string& words) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
      SimulationOptions options = Trouble(seed);
      options.planted = planted;
      const std::string violation = Simulate(options).violation;
      if (violation.find(words) != std::string::npos) return true;
    }
    return false;
  };
  CHECK(found(Planted::kLeasesNeverEnd, "the job hangs"));
  CHECK(found(Planted::kForgetsCompletions, "was completed twice"));
  CHECK(found(Planted::kReleasesEarly, "the reply to step"));
  CHECK(found(Planted::kKeepsWaitingForTheIdle, "the job hangs"));
  CHECK(found(Planted::kGrantsTwice, "is leased twice"));
}

TEST_CASE("without failures nearly all computing counts; with restarts of all, the less the more fail",
          "[simulation]") {
  SimulationOptions options;
  options.workers = 16;
  options.splits = 400;
  options.data_epochs = 1;
  options.step_seconds = 1;
  options.speed_spread = 0;
  CHECK(Simulate(options).goodput > 0.9);
  CHECK(SimulateRestarts(options, 60, 2, 10'000) == Approx(60.0 / 62));
  double before = 1;
  for (const double rate : {0.001, 0.01, 0.1}) {
    options.kills_per_second = rate;
    const double goodput = SimulateRestarts(options, 60, 2, 100'000);
    CHECK(goodput < before);
    before = goodput;
  }
  CHECK(before < 0.05);
}

}  // namespace recon
