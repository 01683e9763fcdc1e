#include "tools/trace/step_times.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/tools/trace_updates.h"

namespace recon {
namespace {

using trace::About;
using Span = TraceUpdates::Span;

bool Near(double a, double b) { return std::abs(a - b) < 1e-3; }

// A step of 100 ms, from `at` on: computing 60, encoding 5 of what it waits then, 35 under way, of which the
// server has 25: the log 5, apply 10, other workers 8.
void AddStep(uint32_t worker, uint64_t step, double at, std::vector<Span>* of_worker,
             std::vector<Span>* of_server) {
  const About frame = About::Frame(worker, step, 0);
  of_worker->insert(of_worker->end(),
                    {{trace::kComputing, at, at + 60, About::Push(worker, step)},
                     {trace::kWaitingForPushes, at + 60, at + 100},
                     {trace::kEncoding, at + 60, at + 65, About::Push(worker, step), false, 2},
                     {trace::kUnderWay, at + 65, at + 100, frame, true, 2}});
  of_server->insert(of_server->end(), {{trace::kFrame, at + 70, at + 95, frame, true},
                                       {trace::kLogging, at + 71, at + 76, frame, true},
                                       {trace::kApplying, at + 76, at + 86, frame, false, 2},
                                       {trace::kWaitingForOthers, at + 86, at + 94, frame, true}});
}

}  // namespace

TEST_CASE("a step's time is what its training thread does, and what its push is in while it waits",
          "[trace]") {
  std::vector<Span> worker, server;
  for (uint64_t step = 0; step < 10; ++step)
    AddStep(4, step, 1000 + 100.0 * static_cast<double>(step), &worker, &server);
  TraceUpdates updates(1000, 2000);
  updates.AddServer(0, server);
  updates.AddWorker(4, "gpu0", worker);
  const std::vector<StepTimes> workers = MeasureSteps(updates.Build());
  REQUIRE(workers.size() == 1);
  const StepTimes& times = workers[0];
  CHECK(times.steps == 10);
  CHECK(Near(times.step_seconds(), 0.1));
  CHECK(Near(times.of(StepPart::kComputing), 0.6));
  CHECK(Near(times.of(StepPart::kEncoding), 0.05));
  CHECK(Near(times.of(StepPart::kLink), 0.1));
  CHECK(Near(times.of(StepPart::kLog), 0.05));
  CHECK(Near(times.of(StepPart::kApply), 0.1));
  CHECK(Near(times.of(StepPart::kOthers), 0.08));
  CHECK(Near(times.of(StepPart::kServer), 0.02));
  CHECK(Near(times.of(StepPart::kRest), 0));
  double sum = 0;
  for (const double part : times.parts) sum += part;
  CHECK(Near(sum, times.seconds));
}

TEST_CASE("while one frame moves, another one that waits for others is not what a worker waits for",
          "[trace]") {
  TraceUpdates updates(1000, 2000);
  const About one = About::Frame(1, 0, 0), two = About::Frame(1, 0, 7);
  updates.AddServer(0, {{trace::kFrame, 1000, 1900, one, true},
                        {trace::kWaitingForOthers, 1000, 1900, one, true},
                        {trace::kFrame, 1400, 1900, two, true},
                        {trace::kWaitingForOthers, 1500, 1900, two, true}});
  updates.AddWorker(1, "a",
                    {{trace::kWaitingForPushes, 1000, 2000},
                     {trace::kUnderWay, 1000, 2000, one, true},
                     {trace::kUnderWay, 1000, 2000, two, true}});
  const StepTimes times = MeasureSteps(updates.Build()).at(0);
  CHECK(Near(times.of(StepPart::kOthers), 0.4));
  CHECK(Near(times.of(StepPart::kLink), 0.5));  // The second one's way, and at last both ways back.
  CHECK(Near(times.of(StepPart::kServer), 0.1));
}

TEST_CASE("three lines name the slowest worker, the one in the middle, and the largest part", "[trace]") {
  std::vector<Span> server;
  TraceUpdates updates(1000, 2000);
  for (uint32_t number = 0; number < 5; ++number) {
    std::vector<Span> spans;
    // Ten pushes; worker 3 computes 90 ms of 100, the others 30 and wait for it.
    const double computing = number == 3 ? 90 : 30;
    for (uint64_t step = 0; step < 10; ++step) {
      const double at = 1000 + 100.0 * static_cast<double>(step);
      const About frame = About::Frame(number, step, 0);
      spans.insert(spans.end(), {{trace::kComputing, at, at + computing, About::Push(number, step)},
                                 {trace::kWaitingForPushes, at + computing, at + 100},
                                 {trace::kUnderWay, at + computing, at + 100, frame, true, 2}});
      server.push_back({trace::kFrame, at + computing + 1, at + 99, frame, true});
      if (number != 3) server.push_back({trace::kWaitingForOthers, at + computing + 3, at + 95, frame, true});
    }
    updates.AddWorker(number, absl::StrCat("gpu", number), spans);
  }
  updates.AddServer(0, server);
  const std::vector<std::string> lines = ExplainSteps(updates.Build());
  REQUIRE(lines.size() == 3);
  INFO(lines[0] << "\n" << lines[1] << "\n" << lines[2]);
  CHECK(absl::StartsWith(lines[0], "slowest: gpu3, 100 ms a step: computing 90 ms (90 %), "));
  CHECK(absl::StartsWith(lines[1], "median:  gpu"));
  CHECK(absl::StrContains(lines[1], ": waiting for others 62 ms (62 %), computing 30 ms (30 %), "));
  CHECK(absl::StartsWith(lines[2], "gpu3 computes 3.0 times as long as gpu"));
  CHECK(absl::StrContains(lines[2], "5 workers that push, 1 server, clocks within"));
}

TEST_CASE("a job in which nobody pushes has nothing to explain, in three lines", "[trace]") {
  TraceUpdates updates(1000, 2000);
  updates.AddServer(0, {});
  updates.AddWorker(1, "a", {{trace::kWaitingForWork, 1000, 2000}});
  const std::vector<std::string> lines = ExplainSteps(updates.Build());
  REQUIRE(lines.size() == 3);
  CHECK(absl::StrContains(lines[0], "no worker has pushed anything"));
}

TEST_CASE("a worker that is killed counts until it was heard last", "[trace]") {
  std::vector<Span> worker, server;
  AddStep(1, 0, 1000, &worker, &server);
  AddStep(1, 1, 1100, &worker, &server);
  TraceUpdates updates(1000, 2000);
  updates.AddServer(0, server);
  updates.AddWorker(1, "a", worker);
  const StepTimes times = MeasureSteps(updates.Build()).at(0);
  CHECK(Near(times.seconds, 0.2));
  CHECK(Near(times.step_seconds(), 0.1));
}

}  // namespace recon
