// Processes of a job of three servers that end by a signal and are started again, as an upgrade does it.

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/sleep.h"
#include "tests/integration/completed_once.h"
#include "tests/integration/servers_job.h"

namespace recon {
namespace {

constexpr uint64_t kSamples = 4000;

std::vector<std::string> Flags(const std::string& sync, int epochs, const std::string& durability = "log") {
  return {"--sync",
          sync,
          "--data-epochs",
          absl::StrCat(epochs),
          "--split-samples",
          "100",
          "--batch",
          "20",
          "--optimizer",
          "sgd",
          "--learning-rate",
          "0.1",
          "--workers-min",
          "2",
          "--snapshot-interval",
          "500ms",
          "--evict-after",
          "5s",
          "--durability",
          durability};
}

// The longest time in which no split was completed, from the first one on. It asks the head on a thread of
// its own, until it is destroyed.
class GapWatch {
 public:
  explicit GapWatch(const ServersJob* job) : job_(*job), thread_([this] { Watch(); }) {}
  ~GapWatch() {
    stopped_ = true;
    thread_.join();
  }
  absl::Duration longest() const { return absl::Milliseconds(longest_ms_.load()); }

 private:
  void Watch() {
    uint64_t completed = 0;
    absl::Time last;
    while (!stopped_) {
      const auto status = job_.Status();
      const absl::Time now = Now();
      if (status.ok() && status->samples_completed() > completed) {
        if (completed > 0) longest_ms_ = std::max(longest_ms_.load(), absl::ToInt64Milliseconds(now - last));
        completed = status->samples_completed();
        last = now;
      }
      SleepFor(absl::Milliseconds(10));
    }
  }

  const ServersJob& job_;
  std::atomic<int64_t> longest_ms_{0};
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

// Ends one server in good order and starts it again. All others stay.
void Replace(ServersJob* job, int server) {
  INFO("server " << server);
  job->process(server).Signal(SIGTERM);
  REQUIRE(job->process(server).Wait(absl::Seconds(60)) == 0);
  for (int other = 0; other < 3; ++other) {
    INFO("another: " << other);
    CHECK(job->process(other).running() == (other != server));
  }
  REQUIRE(job->Start(server));
}

}  // namespace

TEST_CASE(
    "each of three servers is replaced by SIGTERM and start, in any order: the others stay, and it trains on",
    "[upgrade]") {
  struct Case {
    std::string sync;
    std::vector<int> order;
  };
  for (const Case& c : {Case{"asp", {0, 1, 2}}, Case{"bsp", {1, 2, 0}}, Case{"asp", {1, 0, 1, 2}}}) {
    INFO(c.sync << ", in the order " << absl::StrJoin(c.order, ", "));
    constexpr int kEpochs = 12;
    ServersJob job(3, Flags(c.sync, kEpochs));
    REQUIRE(job.StartAll());
    auto one = job.StartWorker("one");
    auto two = job.StartWorker("two");
    const uint64_t part = kEpochs * kSamples / (c.order.size() + 2);
    {
      const GapWatch gaps(&job);
      uint64_t samples = part;
      for (const int server : c.order) {
        REQUIRE(job.SamplesReach(samples));
        Replace(&job, server);
        samples = job.Status()->samples_completed() + part / 2;
      }
      REQUIRE(job.Finished());
      std::cout << "upgrade, " << c.sync << ", in the order " << absl::StrJoin(c.order, ", ")
                << ": longest time without a completed split " << absl::FormatDuration(gaps.longest())
                << "\n";
    }
    CHECK(one->Wait(absl::Seconds(60)) == 0);
    CHECK(two->Wait(absl::Seconds(60)) == 0);
    CHECK(CompletedOnce(*job.Completions(), kEpochs, kSamples));
    const std::string stopped = "was stopped in good order (SIGTERM): pushes wait until it is back";
    const size_t before = Count(job.ServerLog(), stopped);
    CHECK(before > 0);  // The ones that were replaced.
    REQUIRE(job.Drain());
    // Those whom the head ends have not been stopped, and nobody has gone without a word. (A snapshot that a
    // stop cuts short says that its server has gone.)
    CHECK(Count(job.ServerLog(), stopped) == before);
    CHECK(Count(job.ServerLog(), "has gone without a word") == 0);
  }
}

TEST_CASE("servers that are all stopped at once end with 0, and a head that waits says for whom",
          "[upgrade]") {
  ServersJob job(3, Flags("asp", 100'000));
  REQUIRE(job.StartAll());
  const auto one = job.StartWorker("one");
  const auto two = job.StartWorker("two");
  REQUIRE(job.SamplesReach(1000));
  for (const int server : {2, 1, 0}) job.process(server).Signal(SIGTERM);
  for (const int server : {0, 1, 2}) {
    INFO("server " << server << ": " << job.ServerLog());
    CHECK(job.process(server).Wait(absl::Seconds(60)) == 0);
  }
  REQUIRE(job.Start(0));
  REQUIRE(job.Start(1));
  // Which place the missing one has hangs on which of them came first when the job began.
  CHECK(Eventually([&] { return absl::StrContains(job.ServerLog(), "it waits for server "); }));
  REQUIRE(job.Start(2));
  CHECK(job.SamplesReach(job.Status()->samples_completed() + 1000));
}

TEST_CASE("servers take up other settings of their head without a restart, and end when the job is drained",
          "[upgrade]") {
  ServersJob job(3, Flags("asp", 100'000));
  REQUIRE(job.StartAll());
  const auto one = job.StartWorker("one");
  const auto two = job.StartWorker("two");
  REQUIRE(job.SamplesReach(1000));
  job.process(0).Signal(SIGTERM);
  REQUIRE(job.process(0).Wait(absl::Seconds(60)) == 0);
  std::vector<std::string> flags = Flags("asp", 100'000, "sync");
  flags.insert(flags.end(), {"--servers", "3"});
  job.set_server_flags(flags);
  REQUIRE(job.Start(0));
  CHECK(job.SamplesReach(job.Status()->samples_completed() + 1000));
  for (const int server : {1, 2}) {
    CHECK(job.process(server).running());
    CHECK(absl::StrContains(job.LogOf(server), "other settings than before"));
  }
  CHECK(job.Drain());
}

}  // namespace recon
