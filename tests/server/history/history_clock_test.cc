// A history whose clock is set back: it goes on at once, and what there was keeps its order.

#include <cstdlib>
#include <map>
#include <memory>

#include "absl/synchronization/notification.h"
#include "catch2/catch.hpp"
#include "server/history/history.h"
#include "server/history/history_keeper.h"
#include "tests/server/history/simulated_status.h"
#include "tests/support/faulty_file_system.h"

namespace recon {
namespace {

constexpr int64_t kBegin = 1'700'000'000'000;
constexpr int64_t kDay = 24 * 3'600'000;

// A job whose statuses are noted each second, by a clock that is ahead.
struct ClockedJob {
  SimulatedStatus job{2};
  std::unique_ptr<History> history = std::make_unique<History>(7);
  int second = 0;
  int64_t ahead_ms = 0;

  void Pass(int seconds) {
    for (int i = 0; i < seconds; ++i) {
      ++second;
      history->Note(job.At(second), now());
    }
  }
  int64_t now() const { return kBegin + 1000 * second + ahead_ms; }
  void Evaluate(uint32_t data_epochs) {
    EvalEntry* entry = job.edit().add_evaluations();
    entry->set_data_epochs(data_epochs);
    entry->set_unix_ms(now());
  }
  void Restart() {
    auto next = std::make_unique<History>(7);
    REQUIRE(next->Restore(history->EncodeAll()).ok());
    history = std::move(next);
  }
};

void CheckEachSecond(const HistoryTrack& track, int from, int to) {
  REQUIRE(track.end_ms_size() >= to);
  for (int i = from; i < to; ++i) {
    CAPTURE(i);
    // What has been moved is before the first point by the clock that is right.
    CHECK(std::abs(track.end_ms(i) - (kBegin + 1000 * (i + 1))) <= 1001);
    if (i > 0) CHECK(track.begin_ms(i) >= track.end_ms(i - 1));
  }
}

int CountOf(const JobHistory& history, const std::string& kind) {
  int count = 0;
  for (const HistoryEvent& event : history.events()) count += event.kind() == kind ? 1 : 0;
  return count;
}

}  // namespace

TEST_CASE("a clock that was ahead and is set right costs no point", "[history]") {
  ClockedJob run;
  run.ahead_ms = kDay;
  run.Pass(60);
  run.ahead_ms = 0;
  run.Pass(60);
  const JobHistory told = run.history->Encode("w0", 0);
  CHECK(told.job().end_ms_size() == 120);
  CheckEachSecond(told.job(), 0, 120);
  CHECK(told.job().end_ms(119) == kBegin + 120'000);
  REQUIRE(told.workers_size() == 1);
  CHECK(told.workers(0).end_ms(told.workers(0).end_ms_size() - 1) > kBegin + 117'000);
  CHECK(told.last_push_ms() == kBegin + 120'000);
  // Who asks for what is new gets it.
  run.job.Join("w9", 1);
  run.Pass(1);
  const JobHistory news = run.history->Encode("", kBegin + 115'000);
  CHECK(news.job().end_ms_size() == 6);
  CHECK(CountOf(news, "joined") == 1);
  CHECK(CountOf(told, "clock") == 1);
  for (const HistoryEvent& event : told.events()) CHECK(event.unix_ms() <= kBegin + 61'000);
}

TEST_CASE("what was noted before a clock went wrong keeps its time", "[history]") {
  ClockedJob run;
  run.Pass(30);
  run.ahead_ms = kDay;
  run.Pass(30);
  run.ahead_ms = 0;
  run.Pass(30);
  const HistoryTrack job = run.history->Encode("", 0).job();
  CHECK(job.end_ms_size() == 90);
  CheckEachSecond(job, 0, 90);
  CHECK(job.end_ms(29) == kBegin + 30'000);
}

TEST_CASE("events keep their order when the clock is set back, those of before it went wrong among them",
          "[history]") {
  ClockedJob run;
  run.Pass(10);
  run.job.Join("early", 1);
  run.Pass(1);  // At second 11.
  run.ahead_ms = kDay;
  run.job.Join("first", 1);
  run.Pass(1);
  run.Pass(30);
  run.job.Join("second", 1);
  run.Pass(1);
  run.ahead_ms = -35'000;  // Back to second 9: "early" is moved, too.
  run.Pass(1);
  std::map<std::string, int64_t> joined;
  int64_t before = 0;
  const JobHistory told = run.history->Encode("", 0);
  for (const HistoryEvent& event : told.events()) {
    CAPTURE(event.kind(), event.subject());
    CHECK(event.unix_ms() >= before);
    before = event.unix_ms();
    if (event.kind() == "joined") joined[event.subject()] = event.unix_ms();
  }
  CHECK(joined["w0"] == kBegin + 1000);
  CHECK(joined["early"] >= kBegin + 1000);
  CHECK(joined["first"] >= joined["early"]);
  CHECK(joined["second"] == run.now() - 1);
}

TEST_CASE("a clock that is set right while the server is down is noticed", "[history]") {
  ClockedJob run;
  run.ahead_ms = kDay;
  run.Pass(300);  // Some points are merged.
  run.ahead_ms = 0;
  run.Restart();
  run.Pass(10);
  run.Restart();
  run.Pass(10);
  const JobHistory told = run.history->EncodeAll();
  const HistoryTrack& job = told.job();
  CHECK(job.begin_ms(0) == kBegin + 1999);
  CHECK(job.end_ms(job.end_ms_size() - 1) == kBegin + 320'000);
  CHECK(run.history->Encode("", kBegin + 310'000).job().end_ms_size() == 10);
  CHECK(CountOf(told, "clock") == 1);
}

TEST_CASE("a clock that is set back a little is nothing to tell", "[history]") {
  ClockedJob run;
  run.Pass(10);
  run.ahead_ms = -1300;  // The next status is 0.3 s before the last.
  run.Pass(10);
  const JobHistory told = run.history->Encode("", 0);
  CHECK(told.job().end_ms_size() == 20);
  CHECK(CountOf(told, "clock") == 0);
}

TEST_CASE("evaluations are told once, also those from before the clock was set back", "[history]") {
  ClockedJob run;
  run.ahead_ms = kDay;
  run.Pass(5);
  run.Evaluate(1);
  run.Pass(5);
  run.ahead_ms = 0;
  run.Pass(5);
  CHECK(run.history->Encode("", 0).evaluations().end_ms_size() == 1);
  run.Evaluate(2);
  run.Pass(1);
  run.Restart();
  run.Pass(1);
  CHECK(run.history->Encode("", 0).evaluations().end_ms_size() == 2);
  run.Evaluate(3);
  run.Pass(1);
  const HistoryTrack told = run.history->Encode("", 0).evaluations();
  REQUIRE(told.end_ms_size() == 3);
  CHECK(told.end_ms(2) == kBegin + 17'000);
}

TEST_CASE("evaluations after a rollback are told, though there were some of the same data epochs",
          "[history]") {
  ClockedJob run;
  for (uint32_t data_epochs = 1; data_epochs <= 4; ++data_epochs) {
    run.Evaluate(data_epochs);
    run.Pass(5);
  }
  const auto before = run.job.edit().evaluations();
  run.Restart();  // All is made anew for a rollback.
  run.job.edit().mutable_evaluations()->DeleteSubrange(2, 2);
  run.Pass(1);
  CHECK(run.history->Encode("", 0).evaluations().end_ms_size() == 4);
  run.Evaluate(3);
  run.Pass(1);
  CHECK(run.history->Encode("", 0).evaluations().end_ms_size() == 5);
  // The server is killed before the file has the next one.
  run.Restart();
  run.Evaluate(4);
  run.Pass(1);
  CHECK(run.history->Encode("", 0).evaluations().end_ms_size() == 6);
}

TEST_CASE("a rollback is told once, also if the clock was ahead when it was done", "[history]") {
  ClockedJob run;
  run.ahead_ms = kDay;
  run.Pass(2);
  RollbackRecord* rollback = run.job.edit().mutable_rollback();
  rollback->set_history(1);
  rollback->set_done(true);
  rollback->set_unix_ms(run.now());
  rollback->set_reason("reconctl rollback 12");
  run.Restart();
  run.Pass(2);
  run.ahead_ms = 0;
  run.Pass(2);
  run.Restart();
  run.Pass(2);
  CHECK(CountOf(run.history->EncodeAll(), "rollback") == 1);
  // The next one is told, at a time that the first was told at.
  rollback->set_history(2);
  rollback->set_published(20);
  rollback->set_unix_ms(run.now());
  run.Restart();
  run.Pass(2);
  CHECK(CountOf(run.history->EncodeAll(), "rollback") == 2);
}

TEST_CASE("TensorBoard's events go on when the clock is set back", "[history]") {
  FaultyFileSystem files;
  REQUIRE(files.CreateDirectories("/job").ok());
  SimulatedStatus job(1);
  {
    HistoryKeeper keeper("/job", 7, &files);
    keeper.WriteEvents("/runs");
    // Each is taken up before the next comes: statuses that come too fast are left out.
    const auto note = [&](int second, int64_t unix_ms) {
      keeper.Note(*job.At(second), absl::UnixEpoch() + absl::Seconds(second), absl::FromUnixMillis(unix_ms));
      absl::Notification taken_up;
      keeper.EncodeLater({}, [&](const absl::StatusOr<HistoryReply>&) { taken_up.Notify(); });
      taken_up.WaitForNotification();
    };
    for (int second = 1; second <= 10; ++second) note(second, kBegin + kDay + 1000 * second);
    for (int second = 11; second <= 20; ++second) note(second, kBegin + 1000 * second);
  }
  const auto listed = files.List("/runs");
  REQUIRE(listed.ok());
  REQUIRE(listed->size() == 1);
  const std::string bytes = files.Content("/runs/" + listed->front());
  int points = 0;
  for (size_t at = 0; (at = bytes.find("train/workers", at)) != std::string::npos; ++at) ++points;
  CHECK(points == 20);
}

}  // namespace recon
