#include "server/history/event_stream.h"

#include <map>

#include "absl/synchronization/notification.h"
#include "catch2/catch.hpp"
#include "server/history/history_keeper.h"
#include "tests/server/history/read_events.h"
#include "tests/server/history/simulated_status.h"
#include "tests/support/faulty_file_system.h"

namespace recon {
namespace {

constexpr int64_t kBegin = 1'700'000'000'000;
constexpr int64_t kHour = 3'600'000;

// A job's keeper with a directory for TensorBoard; one after the other, as servers are.
struct WatchedJob {
  std::unique_ptr<FaultyFileSystem> files = std::make_unique<FaultyFileSystem>();
  SimulatedStatus job{1};
  std::unique_ptr<HistoryKeeper> keeper;

  WatchedJob() {
    REQUIRE(files->CreateDirectories("/job").ok());
    Start();
  }
  void Start() {
    keeper = nullptr;
    keeper = std::make_unique<HistoryKeeper>("/job", 7, files.get());
    keeper->WriteEvents("/runs");
  }
  // What it writes as it ends is lost.
  void Kill() {
    std::unique_ptr<FaultyFileSystem> left = files->Copy();
    keeper = nullptr;
    files = std::move(left);
    Start();
  }
  // Returns when it is taken up: of statuses that come too fast some are left out. The time of day is ahead.
  void Note(int64_t age_ms, int64_t ahead_ms = 0) {
    keeper->Note(*job.At(static_cast<double>(age_ms) / 1000), absl::UnixEpoch() + absl::Milliseconds(age_ms),
                 absl::FromUnixMillis(kBegin + age_ms + ahead_ms));
    absl::Notification taken_up;
    keeper->EncodeLater({}, [&](const absl::StatusOr<HistoryReply>&) { taken_up.Notify(); });
    taken_up.WaitForNotification();
  }
  void Evaluate(uint32_t data_epochs, int64_t age_ms) {
    EvalEntry* entry = job.edit().add_evaluations();
    entry->set_data_epochs(data_epochs);
    entry->set_accuracy(0.1 * data_epochs);
    entry->set_unix_ms(kBegin + age_ms);
  }
  // Values of a curve, in all files.
  std::vector<float> Curve(const std::string& tag) {
    std::vector<float> values;
    const auto names = files->List("/runs");
    REQUIRE(names.ok());
    for (const std::string& name : *names) {
      for (const TensorBoardEvent& event : ReadEvents(files->Content("/runs/" + name))) {
        for (const auto& value : event.summary().value()) {
          if (value.tag() == tag) values.push_back(value.simple_value());
        }
      }
    }
    return values;
  }
};

}  // namespace

TEST_CASE("points for TensorBoard are the farther apart the older a job is", "[history]") {
  CHECK(EventStream::IntervalMs(-5) == 1000);
  CHECK(EventStream::IntervalMs(2 * kHour) == 1000);
  CHECK(EventStream::IntervalMs(3 * kHour) == 2000);
  CHECK(EventStream::IntervalMs(24 * kHour) == 8000);
  CHECK(EventStream::IntervalMs(INT64_MAX) >= kHour);
  int64_t points = 0;
  for (int64_t age_ms = 0; age_ms < 365 * 24 * kHour; age_ms += EventStream::IntervalMs(age_ms)) ++points;
  CHECK(points < 100'000);
}

TEST_CASE("an old job's points are merged for TensorBoard, over restarts, too", "[history]") {
  WatchedJob run;
  run.Note(0);
  constexpr int64_t kOld = 24 * kHour;
  for (int second = 0; second < 400; ++second) {
    if (second == 200) run.Start();
    run.job.edit().set_updates(static_cast<uint64_t>(second));
    run.Note(kOld + 1000 * second);
  }
  run.keeper = nullptr;
  const std::vector<float> updates = run.Curve("train/updates");
  CHECK(updates.size() <= 400 / 8 + 4);
  CHECK(updates.size() >= 400 / 8);
  CHECK(updates[10] - updates[9] == Approx(8));
  CHECK(updates.back() > 395);  // The end is there, whenever it comes.
}

TEST_CASE("points that wait for their interval are written for TensorBoard before the clock is set back",
          "[history]") {
  WatchedJob run;
  run.Note(0);
  constexpr int64_t kOld = 24 * kHour;
  for (int second = 0; second <= 5; ++second) {
    run.job.edit().set_updates(static_cast<uint64_t>(10 + second));
    run.Note(kOld + 1000 * second);
  }
  run.job.edit().set_updates(16);
  run.Note(kOld + 6000, -kHour);
  run.keeper = nullptr;
  const std::vector<float> updates = run.Curve("train/updates");
  REQUIRE(updates.size() == 4);  // The first of all, the first of the day, five that waited, the last.
  CHECK(updates[1] == Approx(10));
  CHECK(updates[2] == Approx(13));
  CHECK(updates[3] == Approx(16));
}

TEST_CASE("an old job's evaluations are written for TensorBoard at once: a server that is killed loses none",
          "[history]") {
  WatchedJob run;
  run.Note(0);
  constexpr int64_t kOld = 24 * kHour;
  for (int second = 0; second < 8; ++second) {
    if (second == 3) run.Evaluate(1, kOld + 2500);
    run.Note(kOld + 1000 * second);  // After 5 s the history is saved, with the evaluation.
  }
  run.Kill();
  run.Note(kOld + 10'000);
  run.Evaluate(2, kOld + 10'500);
  run.Evaluate(3, kOld + 10'600);
  run.Note(kOld + 11'000);
  run.Kill();
  const std::vector<float> accuracy = run.Curve("eval/accuracy");
  REQUIRE(accuracy.size() == 3);
  for (size_t i = 0; i < 3; ++i) CHECK(accuracy[i] == Approx(0.1 * (static_cast<double>(i) + 1)));
}

TEST_CASE("evaluations are written for TensorBoard once each, however often somebody looks", "[history]") {
  WatchedJob run;
  for (int half_second = 0; half_second < 60; ++half_second) {
    const int64_t age_ms = 500 * half_second;
    if (half_second % 10 == 5) run.Evaluate(static_cast<uint32_t>(half_second / 10 + 1), age_ms - 100);
    run.Note(age_ms);
  }
  run.keeper = nullptr;
  const std::vector<float> accuracy = run.Curve("eval/accuracy");
  REQUIRE(accuracy.size() == 6);
  CHECK(accuracy[5] == Approx(0.6));
  CHECK(run.Curve("train/workers").size() == 30);
}

}  // namespace recon
