#include "server/sync/staleness_gate.h"

#include <signal.h>

#include <random>

#include "catch2/catch.hpp"
#include "server/sync/reply_queue.h"
#include "tests/support/death.h"

namespace recon {
namespace {

const absl::Time kLater = absl::FromUnixSeconds(10);
const WorkerId kOne(1);
const WorkerId kTwo(2);

}  // namespace

TEST_CASE("bound 0 releases a step when all have pushed it", "[sync]") {
  StalenessGate gate(0, 0);
  ReplyQueue queue;
  gate.Join(kOne, 0);
  gate.Join(kTwo, 0);
  gate.Advance(kOne, 0);
  CHECK_FALSE(gate.Open(0));
  queue.Wait(1, 0, kLater);
  CHECK(queue.TakeReleased(gate).empty());
  gate.Advance(kTwo, 0);
  CHECK(gate.frontier() == 1);
  CHECK(queue.TakeReleased(gate) == std::vector<ReplyQueue::Ticket>{1});
  CHECK(queue.TakeReleased(gate).empty());
}

TEST_CASE("bound s lets the fastest be s steps ahead, and no more", "[sync]") {
  for (int bound = 1; bound < 5; ++bound) {
    StalenessGate gate(bound, 0);
    gate.Join(kOne, 0);
    gate.Join(kTwo, 0);
    for (uint64_t step = 0; step < 10; ++step) {
      gate.Advance(kOne, step);
      CHECK(gate.Open(step) == (step < static_cast<uint64_t>(bound)));
    }
  }
}

TEST_CASE("unlimited never waits", "[sync]") {
  StalenessGate gate(StalenessGate::kUnlimited, 0);
  gate.Join(kOne, 0);
  gate.Join(kTwo, 0);
  CHECK(gate.Open(1'000'000));
}

TEST_CASE("nobody waits for a worker that left", "[sync]") {
  StalenessGate gate(0, 0);
  ReplyQueue queue;
  gate.Join(kOne, 0);
  gate.Join(kTwo, 0);
  gate.Advance(kOne, 0);
  queue.Wait(1, 0, kLater);
  gate.Leave(kTwo);
  CHECK(queue.TakeReleased(gate) == std::vector<ReplyQueue::Ticket>{1});
  gate.Forget(kTwo);
  gate.Advance(kTwo, 7);  // A ghost's push moves nothing.
  CHECK(gate.frontier() == 1);
}

TEST_CASE("a worker joins at the frontier, or later if it is ahead; steps never go back", "[sync]") {
  StalenessGate gate(0, 5);
  CHECK(gate.Join(kOne, 0) == 5);
  CHECK(gate.Join(kTwo, 9) == 9);
  CHECK(gate.frontier() == 5);
  gate.Advance(kOne, 5);
  CHECK(gate.Join(kOne, 0) == 6);
  gate.Leave(kOne);
  CHECK(gate.frontier() == 9);
  gate.Leave(kTwo);
  CHECK(gate.frontier() == 9);
  CHECK(gate.Join(kOne, 0) == 9);
}

TEST_CASE("steps that complete out of order count when the gap is closed", "[sync]") {
  StalenessGate gate(2, 0);
  gate.Join(kOne, 0);
  gate.Advance(kOne, 1);
  CHECK(gate.next_step(kOne) == 0);
  gate.Advance(kOne, 1);
  gate.Advance(kOne, 0);
  CHECK(gate.next_step(kOne) == 2);
  gate.Advance(kOne, 0);
  CHECK(gate.next_step(kOne) == 2);
}

TEST_CASE("what a worker pushed while it took no part counts when it comes back", "[sync]") {
  StalenessGate gate(0, 0);
  gate.Join(kOne, 0);
  gate.Know(kTwo, 0);
  gate.Advance(kTwo, 0);
  gate.Advance(kOne, 0);
  CHECK(gate.Join(kTwo, 0) == 1);
  CHECK(gate.frontier() == 1);
  // Acknowledgements the gate does not know of are made up for by what the worker says.
  gate.Advance(kOne, 1);
  gate.Raise(kTwo, 2);
  CHECK(gate.frontier() == 2);
}

TEST_CASE("asynchronous workers keep steps of their own", "[sync]") {
  StalenessGate gate(StalenessGate::kUnlimited, 0);
  gate.Join(kOne, 500);
  CHECK(gate.Join(kTwo, 3) == 3);
}

TEST_CASE("a waiting reply expires once", "[sync]") {
  StalenessGate gate(0, 0);
  ReplyQueue queue;
  gate.Join(kOne, 0);
  queue.Wait(1, 0, kLater);
  CHECK(queue.TakeExpired(kLater - absl::Seconds(1)).empty());
  CHECK(queue.TakeExpired(kLater) == std::vector<ReplyQueue::Ticket>{1});
  CHECK(queue.size() == 0);
  queue.Wait(1, 0, kLater);
  // One that waits already is a mistake of whoever numbers them.
  const Death death = DeathOf([&] { queue.Wait(1, 1, kLater); });
  CHECK(death.signal == SIGABRT);
  CHECK_THAT(death.stderr_text, Catch::Matchers::Contains("two replies wait with one ticket"));
}

TEST_CASE("under any order of events nobody passes the bound and nobody waits for ever", "[sync]") {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const int bound = static_cast<int>(random() % 4);
    StalenessGate gate(bound, 0);
    ReplyQueue queue;
    // Each worker: the step it is computing or waiting for; absent = not in the job.
    std::map<uint32_t, uint64_t> computing;
    std::map<uint32_t, uint64_t> waiting;
    const auto release = [&] {
      for (const ReplyQueue::Ticket ticket : queue.TakeReleased(gate)) {
        const auto worker = static_cast<uint32_t>(ticket);
        if (waiting.count(worker) == 0) continue;
        computing[worker] = waiting[worker] + 1;
        waiting.erase(worker);
      }
    };
    for (int event = 0; event < 300; ++event) {
      const uint32_t worker = 1 + random() % 5;
      const uint32_t what = random() % 20;
      if (what == 0) {  // Its process dies.
        gate.Forget(WorkerId(worker));
        queue.Cancel(worker);
        computing.erase(worker);
        waiting.erase(worker);
      } else if (what == 1 && waiting.count(worker) == 0) {  // It has no work for a while.
        gate.Leave(WorkerId(worker));
        computing.erase(worker);
      } else if (computing.count(worker) == 0 && waiting.count(worker) == 0) {
        computing[worker] = gate.Join(WorkerId(worker), 0);
      } else if (computing.count(worker) != 0) {
        const uint64_t step = computing[worker];
        uint64_t slowest = step;
        for (const auto& [other, at] : computing) slowest = std::min(slowest, at);
        for (const auto& [other, at] : waiting) slowest = std::min(slowest, at + 1);
        REQUIRE(step - slowest <= static_cast<uint64_t>(bound));
        computing.erase(worker);
        gate.Advance(WorkerId(worker), step);
        waiting[worker] = step;
        queue.Wait(worker, step, absl::InfiniteFuture());
      }
      release();
      // Progress: as long as there are workers, one of them computes.
      REQUIRE((waiting.empty() || !computing.empty()));
    }
  }
}

TEST_CASE("BSP with nobody active: what is complete is closed, in whatever order it comes", "[gate]") {
  StalenessGate gate(0, 5);
  gate.Know(WorkerId(1), 5);
  CHECK_FALSE(gate.Open(5));
  gate.Advance(WorkerId(1), 5);
  CHECK(gate.frontier() == 6);
  CHECK(gate.Open(5));
  // One whose acknowledgement of step 6 was lost, and comes to be known after its push of step 7.
  gate.Know(WorkerId(2), 6);
  gate.Advance(WorkerId(2), 7);
  CHECK_FALSE(gate.Open(7));
  gate.Raise(WorkerId(2), 7);
  CHECK(gate.frontier() == 8);
  CHECK(gate.Open(7));
}

}  // namespace recon
