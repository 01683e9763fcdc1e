// Pushes through connections that break at any moment, by seeds.

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "tests/worker/comm/small_worker.h"

namespace recon {
namespace {

constexpr uint64_t kSeeds = 200;
// They wait most of the time.
constexpr int kTrialsBeside = 24;
constexpr int kPushes = 12;
constexpr absl::Duration kHangs = absl::Seconds(60);

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Sums of these are exact, and say how often each counts: its digit to the base of 4.
float ValueOf(int push) { return static_cast<float>(uint32_t{1} << (2 * push)); }
uint32_t CountOf(float sum, int push) { return static_cast<uint32_t>(sum) >> (2 * push) & 3; }

// Registers in the cluster epoch that is now, and has a later step for whoever missed one.
class PatientHead : public FakeHead {
 public:
  absl::StatusOr<RegisterReply> Register(const RegisterRequest& request) override {
    absl::StatusOr<RegisterReply> reply = FakeHead::Register(request);
    if (reply.ok()) reply->set_cluster_epoch(cluster_epoch);
    return reply;
  }
  absl::StatusOr<RejoinReply> Rejoin(const RejoinRequest& request) override {
    if (++rejoins_asked % 4 == 0) return absl::AbortedError("it counts no more");
    RejoinReply reply;
    reply.set_step(request.next_step() + rejoins_asked % 3);
    return reply;
  }

  std::atomic<uint64_t> cluster_epoch{1};
  std::atomic<uint64_t> rejoins_asked{0};
};

// One worker under the faults of a seed.
class Trial {
 public:
  explicit Trial(uint64_t seed)
      : random_(seed),
        depth_(1 + static_cast<int>(random_() % 4)),
        fails_after_(random_() % 5 == 0 ? random_() % kPushes : kPushes),
        job_(SetupOf(&random_), depth_, std::make_unique<PatientHead>()),
        head_(static_cast<PatientHead*>(job_.head.get())) {}

  std::vector<std::string> Run() {
    std::vector<std::thread> wires;
    for (const auto& way : job_.servers) {
      way->Decide([this](const Frame& frame) { return FateOf(frame); });
      wires.emplace_back([this, way = way.get()] { Carry(way); });
    }
    for (int push = 0; push < kPushes && violations_.empty(); ++push) {
      if (static_cast<uint64_t>(push) == fails_after_) job_.session->Fail(absl::DataLossError("of the test"));
      SubmitOne(push);
    }
    if (violations_.empty() && !job_.outcomes.AwaitCount(kPushes, kHangs)) Violation("a push hangs");
    if (!violations_.empty()) job_.End();
    job_.pipeline = nullptr;
    for (const auto& way : job_.servers) way->Release();
    for (std::thread& wire : wires) wire.join();
    if (violations_.empty()) Check();
    return violations_;
  }
  size_t seen_again() { return job_.sums.seen_again(); }
  double late() { return job_.CounterOf("recon_worker_late_pushes_total"); }

 private:
  using Fate = FakeTransport::Fate;

  static SmallWorker::Setup SetupOf(std::mt19937_64* random) {
    SmallWorker::Setup setup;
    setup.sizes = {2, 3, 1, 4};
    setup.servers = 1 + static_cast<uint32_t>((*random)() % 3);
    setup.job.mutable_job()->set_heartbeat_interval_ms(50);
    setup.job.mutable_job()->set_bound((*random)() % 2 == 0 ? -1 : 0);
    return setup;
  }

  uint64_t Draw(uint64_t below) {
    MutexLock lock(&mu_);
    return random_() % below;
  }
  void Violation(const std::string& what) { violations_.push_back(what); }

  Fate FateOf(const Frame& frame) {
    if (Draw(12) == 0) (void)job_.sums.CloseStepIfEmpty(frame.header.step);
    if (Draw(40) == 0) {
      ++head_->cluster_epoch;
      job_.sums.Restart();
    }
    switch (Draw(10)) {
      case 0:
        return Fate::kLose;
      case 1:
        return Fate::kLoseAnswer;
      case 2:
      case 3:
        return Fate::kHold;
      case 4:
      case 5:
        return Fate::kHoldAnswer;
      default:
        return Fate::kAnswer;
    }
  }

  void Carry(FakeTransport* way) {
    while (way->AwaitSomeHeld(1 + Draw(3), absl::Milliseconds(1))) {
      if (Draw(8) == 0) {
        way->Disconnect();
      } else {
        (void)way->Answer(Draw(8));
      }
    }
  }

  void SubmitOne(int push) {
    std::optional<uint64_t> step = job_.session->TakeStep();
    if (!step) {
      if (!job_.outcomes.AwaitCount(static_cast<size_t>(push), kHangs)) return Violation("no step comes");
      // It is acknowledged before it is called back.
      step = job_.session->TakeStep();
      if (!step) return Violation("all pushes have ended, and there is no step");
    }
    job_.pipeline->Submit(job_.PushOf(ValueOf(push), push, *step));
  }

  void Check() {
    const std::vector<std::pair<int, bool>> ends = job_.outcomes.Sorted();
    if (ends.size() != kPushes) Violation(absl::StrCat(ends.size(), " callbacks"));
    const bool failed = !job_.session->fatal().ok();
    if (failed != (fails_after_ < kPushes)) Violation(job_.session->fatal().ToString());
    const std::vector<float> values = job_.sums.values();
    int dropped = 0;
    for (size_t i = 0; i < ends.size(); ++i) {
      const auto [push, applied] = ends[i];
      if (static_cast<size_t>(push) != i) Violation(absl::StrCat("push ", i, " is not called back once"));
      dropped += applied ? 0 : 1;
      for (size_t at = 0; at < values.size(); ++at) {
        const uint32_t count = CountOf(-values[at], push);
        const bool right = failed && !applied ? count <= 1 : count == (applied ? 1 : 0);
        if (!right) {
          Violation(absl::StrCat("value ", at, " has push ", push, " ", count, " times, applied: ", applied));
        }
      }
    }
    const double counted = job_.CounterOf("recon_worker_dropped_pushes_total");
    if (failed ? counted > dropped : counted != dropped) {
      Violation(absl::StrCat(dropped, " pushes were dropped, ", counted, " are counted"));
    }
  }

  Mutex mu_;
  std::mt19937_64 random_;
  const int depth_;
  const uint64_t fails_after_;
  SmallPipeline job_;
  PatientHead* const head_;
  std::vector<std::string> violations_;
};

}  // namespace

TEST_CASE("whatever breaks, a push counts once or is dropped by name, and is called back once",
          "[pipeline]") {
  const uint64_t first = FromEnvironment("RECON_FIRST_SEED", 1);
  const uint64_t end = first + FromEnvironment("RECON_SEEDS", kSeeds);
  std::atomic<uint64_t> next{first};
  std::atomic<size_t> seen_again{0};
  std::atomic<int> late{0};
  Mutex mu;
  std::map<uint64_t, std::string> failures;  // By seed.
  const auto run = [&] {
    while (true) {
      const uint64_t seed = next.fetch_add(1);
      if (seed >= end) return;
      Trial trial(seed);
      const std::vector<std::string> violations = trial.Run();
      seen_again += trial.seen_again();
      if (trial.late() > 0) ++late;
      if (violations.empty()) continue;
      next = end;
      MutexLock lock(&mu);
      failures[seed] = absl::StrJoin(violations, "\n");
    }
  };
  std::vector<std::thread> beside;
  for (int i = 0; i < kTrialsBeside; ++i) beside.emplace_back(run);
  for (std::thread& thread : beside) thread.join();
  for (const auto& [seed, what] : failures) {
    UNSCOPED_INFO("RECON_FIRST_SEED=" << seed << " RECON_SEEDS=1 runs it again: " << what);
  }
  REQUIRE(failures.empty());
  if (end - first < kSeeds) return;
  // The faults have come.
  CHECK(seen_again > 0);
  CHECK(late > 0);
}

}  // namespace recon
