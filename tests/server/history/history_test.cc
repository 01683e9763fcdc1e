#include "server/history/history.h"

#include <functional>
#include <map>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "server/history/event_file.h"
#include "server/history/history_file.h"
#include "tests/server/history/read_events.h"
#include "tests/server/history/simulated_status.h"
#include "tests/support/faulty_file_system.h"

namespace recon {
namespace {

constexpr int64_t kBegin = 1'700'000'000'000;

std::map<std::string, HistorySeries> SeriesOf(const HistoryTrack& track) {
  std::map<std::string, HistorySeries> series;
  for (const HistorySeries& one : track.series()) series[one.name()] = one;
  return series;
}

std::vector<std::string> KindsOf(const JobHistory& history, const std::string& subject) {
  std::vector<std::string> kinds;
  for (const HistoryEvent& event : history.events()) {
    if (event.subject() == subject) kinds.push_back(event.kind());
  }
  return kinds;
}

}  // namespace

TEST_CASE("what a server says becomes series of the job and of each worker", "[history]") {
  SimulatedStatus job(4);
  History history(7);
  for (int second = 1; second <= 20; ++second) history.Note(job.At(second), kBegin + 1000 * second);
  const JobHistory told = history.Encode("w2", 0);
  REQUIRE(told.job().begin_ms_size() == 20);
  auto of_job = SeriesOf(told.job());
  CHECK(of_job["loss"].mean(19) == Approx(1.0 / 21));
  CHECK(of_job["samples_per_second"].mean(19) == 4 * 640);
  CHECK(of_job["pushes_per_second"].mean(19) == Approx(40));
  CHECK(of_job["push_bytes_per_second"].mean(19) == Approx(40'000));
  CHECK(of_job["pull_bytes_per_second"].mean(19) == Approx(80'000));
  CHECK(of_job["push_latency_ms"].mean(19) == Approx(20));
  CHECK(of_job["computing"].mean(19) == Approx(0.6));
  CHECK(of_job["waiting"].mean(19) == Approx(0.1));
  CHECK(of_job["link"].mean(19) == Approx(0.2));
  CHECK(of_job["workers"].mean(19) == 4);
  REQUIRE(told.workers_size() == 1);
  CHECK(told.workers(0).name() == "w2");
  CHECK(told.workers(0).begin_ms_size() == 10);
  CHECK(SeriesOf(told.workers(0))["staleness"].mean(9) == 2);
  CHECK(told.last_push_ms() == kBegin + 20'000);
  CHECK(history.Encode("", kBegin + 18'000).job().begin_ms_size() == 2);
}

TEST_CASE("a month of a thousand workers stays within its memory and its file", "[history]") {
  // A day's samples are noted for each quarter of it, so that the test takes seconds: what bounds is the
  // number of points.
  History::Limits limits;
  limits.worker_interval_ms = 60'000;
  limits.job_interval_ms = 60'000;
  History history(7, limits);
  SimulatedStatus job(1000);
  constexpr int kMinutes = 30 * 24 * 60;
  size_t most = 0;
  for (int minute = 0; minute < kMinutes; minute += minute < 100 ? 1 : 180) {
    job.Join(absl::StrCat("w", minute % 1000), 1 + static_cast<uint64_t>(minute));
    history.Note(job.At(60.0 * minute), kBegin + int64_t{60'000} * minute);
    most = std::max(most, history.bytes());
  }
  CHECK(most < size_t{56} << 20);
  FaultyFileSystem files;
  REQUIRE(files.CreateDirectories("/job").ok());
  const auto written = WriteHistory(&files, "/job", history.EncodeAll());
  REQUIRE(written.ok());
  CHECK(*written < uint64_t{56} << 20);
}

TEST_CASE("a simulated month of points each ten seconds keeps its first and its last hour", "[history]") {
  constexpr const char* kNames[] = {"value"};
  const Track::Shape shape = History::Limits().job;
  Track track(kNames, shape);
  constexpr int64_t kPoints = 30 * 24 * 360;
  for (int64_t i = 0; i < kPoints; ++i) track.Add(kBegin + 10'000 * i, {i == 10'000 ? 1000.0f : 1.0f});
  CHECK(track.points() <= shape.level_points * shape.levels);
  const HistoryTrack told = track.Encode("", 0);
  const HistorySeries& value = told.series(0);
  CHECK(told.begin_ms(0) == kBegin);
  uint64_t samples = 0;
  float most = 0;
  for (int i = 0; i < told.samples_size(); ++i) {
    samples += told.samples(i);
    most = std::max(most, value.max(i));
    CHECK(value.min(i) == 1);
    if (i > 0) CHECK(told.begin_ms(i) > told.end_ms(i - 1));
  }
  CHECK(samples == static_cast<uint64_t>(kPoints));
  CHECK(most == 1000);  // What lasted ten seconds is seen after a month.
  const int last = told.begin_ms_size() - 1;
  CHECK(told.end_ms(last) == kBegin + 10'000 * (kPoints - 1));
  CHECK(told.samples(last) == 1);
}

TEST_CASE("the last level halves itself for ever", "[history]") {
  constexpr const char* kNames[] = {"value"};
  Track track(kNames, {4, 3});
  for (int i = 0; i < 10'000; ++i) track.Add(kBegin + i, {static_cast<float>(i)});
  CHECK(track.points() <= 12);
  const HistoryTrack told = track.Encode("", 0);
  uint64_t samples = 0;
  double sum = 0;
  for (int i = 0; i < told.samples_size(); ++i) {
    samples += told.samples(i);
    sum += static_cast<double>(told.series(0).mean(i)) * told.samples(i);
  }
  CHECK(samples == 10'000);
  CHECK(sum / 10'000 == Approx(4999.5));
}

TEST_CASE("what is not known leaves the mean of what is", "[history]") {
  constexpr const char* kNames[] = {"value"};
  Track track(kNames, {2, 2});
  for (const float value : {NAN, 3.0f, NAN, NAN, 5.0f, 7.0f}) track.Add(track.last_ms() + 1, {value});
  const HistoryTrack told = track.Encode("", 0);
  REQUIRE(told.begin_ms_size() == 4);
  CHECK(told.series(0).mean(0) == 3);
  CHECK(std::isnan(told.series(0).mean(1)));
  CHECK(told.series(0).mean(3) == 7);
}

TEST_CASE("a clock that is set back does not turn the order", "[history]") {
  constexpr const char* kNames[] = {"value"};
  Track track(kNames, {4, 2});
  track.Add(kBegin, {1});
  track.Add(kBegin - 5000, {2});
  Track other(kNames, {4, 2});
  CHECK(other.Restore(track.Encode("", 0)).ok());
  CHECK(other.last_ms() == kBegin);
}

TEST_CASE("what happens to workers is told with its reason", "[history]") {
  SimulatedStatus job(2);
  History history(7);
  int second = 0;
  const auto note = [&] {
    ++second;
    history.Note(job.At(second), kBegin + 1000 * second);
  };
  note();
  job.Find("w0")->set_state(MEMBER_SUSPECT);
  note();
  job.Find("w0")->set_state(MEMBER_ACTIVE);
  note();
  job.Find("w0")->set_state(MEMBER_SUSPECT);
  note();
  job.Find("w0")->set_state(MEMBER_GONE);
  job.Find("w0")->set_gone_why("evicted, no heartbeat");
  note();
  job.Join("w0", 2);
  note();
  job.Find("w1")->set_state(MEMBER_GONE);
  job.Find("w1")->set_gone_why("left (drained)");
  note();
  job.edit().mutable_job()->mutable_policy()->set_sync("bsp");
  note();
  job.edit().mutable_snapshot()->set_generation(3);
  job.edit().mutable_snapshot()->set_published(1);
  note();
  const JobHistory told = history.Encode("", 0);
  CHECK(KindsOf(told, "w0") ==
        std::vector<std::string>{"joined", "suspected", "heard", "suspected", "evicted", "restarted"});
  CHECK(KindsOf(told, "w1") == std::vector<std::string>{"joined", "left"});
  CHECK(KindsOf(told, "") == std::vector<std::string>{"started", "running", "policy"});
  CHECK(KindsOf(told, "3") == std::vector<std::string>{"snapshot"});
  for (const HistoryEvent& event : told.events()) {
    if (event.kind() == "policy") CHECK(event.text() == "asp -> bsp");
    if (event.kind() == "left") CHECK(event.text() == "left (drained)");
  }
}

TEST_CASE("workers that a restarted server sees for the first time return", "[history]") {
  SimulatedStatus job(2);
  History history(7);
  history.Note(job.At(1), kBegin);
  History after(7);
  REQUIRE(after.Restore(history.EncodeAll()).ok());
  job.Join("w2", 1);
  after.Note(job.At(2), kBegin + 1000);
  const JobHistory told = after.EncodeAll();
  CHECK(KindsOf(told, "w0") == std::vector<std::string>{"joined", "returned"});
  CHECK(KindsOf(told, "w2") == std::vector<std::string>{"joined"});
}

TEST_CASE("what a restarted server only sees again is not told again", "[history]") {
  SimulatedStatus job(0);
  job.edit().mutable_snapshot()->set_non_finite_values(3);
  job.edit().set_divergence("the loss is not finite");
  auto history = std::make_unique<History>(7);
  int second = 0;
  const auto start = [&](JobPhase phase) {
    auto next = std::make_unique<History>(7);
    REQUIRE(next->Restore(history->EncodeAll()).ok());
    history = std::move(next);
    for (int i = 0; i < 2; ++i) {
      job.edit().set_phase(i == 0 ? PHASE_WAITING : phase);
      job.edit().mutable_snapshot()->set_generation(5);
      ++second;
      history->Note(job.At(second), kBegin + 1000 * second);
    }
  };
  start(PHASE_RUNNING);
  start(PHASE_RUNNING);
  start(PHASE_DRAINING);
  start(PHASE_RUNNING);
  start(PHASE_FINISHED);
  start(PHASE_FINISHED);
  job.edit().mutable_snapshot()->set_non_finite_values(4);
  start(PHASE_FINISHED);
  CHECK(KindsOf(history->EncodeAll(), "") ==
        std::vector<std::string>{"started", "diverged", "diverged", "running", "started", "started",
                                 "draining", "started", "running", "started", "finished", "started",
                                 "started", "diverged"});
}

TEST_CASE("a rollback is told once, however often the server restarts", "[history]") {
  SimulatedStatus job(1);
  RollbackRecord* rollback = job.edit().mutable_rollback();
  rollback->set_history(1);
  rollback->set_done(true);
  rollback->set_unix_ms(kBegin + 500);
  rollback->set_reason("reconctl rollback 12");
  auto history = std::make_unique<History>(7);
  for (int start = 1; start <= 3; ++start) {
    history->Note(job.At(start), kBegin + 1000 * start);
    auto next = std::make_unique<History>(7);
    REQUIRE(next->Restore(history->EncodeAll()).ok());
    history = std::move(next);
  }
  int told = 0;
  const JobHistory all = history->EncodeAll();
  for (const HistoryEvent& event : all.events()) told += event.kind() == "rollback" ? 1 : 0;
  CHECK(told == 1);
}

TEST_CASE("texts and names are bounded and stay valid UTF-8", "[history]") {
  SimulatedStatus job(0);
  std::string name;
  for (int i = 0; i < 100'000; ++i) name += "\xc3\xa4";
  job.Join(name, 1).set_device(name);
  History history(7);
  history.Note(job.At(1), kBegin);
  const JobHistory told = history.EncodeAll();
  JobHistory again;
  REQUIRE(again.ParseFromString(told.SerializeAsString()));
  for (const HistoryEvent& event : again.events()) {
    CHECK(event.subject().size() <= 256);
    CHECK(event.text().size() <= 512);
  }
}

TEST_CASE("of each kind of event the newest stay", "[history]") {
  History::Limits limits;
  limits.events_of_kind = 8;
  History history(7, limits);
  SimulatedStatus job(0);
  for (int i = 1; i <= 100; ++i) {
    job.Join(absl::StrCat("spot", i), 1);
    history.Note(job.At(i), kBegin + 1000 * i);
  }
  const JobHistory told = history.EncodeAll();
  int joined = 0;
  bool started = false;
  for (const HistoryEvent& event : told.events()) {
    joined += event.kind() == "joined" ? 1 : 0;
    started |= event.kind() == "started";
  }
  CHECK(joined == 8);
  CHECK(started);
}

TEST_CASE("series of workers that are there come before those of workers that left", "[history]") {
  History::Limits limits;
  limits.workers_max = 6;
  limits.departed_max = 3;
  limits.worker_interval_ms = 0;
  History history(7, limits);
  SimulatedStatus job(4);
  int second = 0;
  const auto note = [&] {
    ++second;
    history.Note(job.At(second), kBegin + 1000 * second);
  };
  note();
  for (const char* name : {"w0", "w1", "w2", "w3"}) job.Find(name)->set_state(MEMBER_GONE);
  note();
  CHECK(history.EncodeAll().workers_size() == 3);
  for (const char* name : {"n0", "n1", "n2", "n3", "n4"}) job.Join(name, 2);
  note();
  const JobHistory told = history.EncodeAll();
  CHECK(told.workers_size() == 6);
  int present = 0;
  for (const HistoryTrack& worker : told.workers()) present += absl::StartsWith(worker.name(), "n") ? 1 : 0;
  CHECK(present == 5);
}

TEST_CASE("an evaluation is a point of its own, and told once", "[history]") {
  SimulatedStatus job(1);
  History history(7);
  for (int i = 1; i <= 5; ++i) {
    EvalEntry* entry = job.edit().add_evaluations();
    entry->set_data_epochs(static_cast<uint32_t>(i));
    entry->set_accuracy(0.1 * i);
    entry->set_unix_ms(kBegin + 1000 * i);
    history.Note(job.At(i), kBegin + 1000 * i);
  }
  const JobHistory told = history.EncodeAll();
  CHECK(told.evaluations().begin_ms_size() == 5);
  CHECK(told.evaluations().series(0).mean(4) == Approx(0.5));
  CHECK(told.evaluated_epochs() == 5);
}

TEST_CASE("a history goes on from its file", "[history]") {
  SimulatedStatus job(3);
  History history(7);
  for (int second = 1; second <= 500; ++second) history.Note(job.At(second), kBegin + 1000 * second);
  FaultyFileSystem files;
  REQUIRE(files.CreateDirectories("/job").ok());
  REQUIRE(WriteHistory(&files, "/job", history.EncodeAll()).ok());
  const auto read = ReadHistory(&files, "/job");
  REQUIRE(read.ok());
  History again(7);
  REQUIRE(again.Restore(*read).ok());
  CHECK(again.EncodeAll().SerializeAsString() == history.EncodeAll().SerializeAsString());
  History other(8);
  CHECK(absl::IsFailedPrecondition(other.Restore(*read)));
}

TEST_CASE("a damaged history is told from a good one, wherever it is damaged", "[history]") {
  SimulatedStatus job(1);
  History history(7);
  for (int second = 1; second <= 3; ++second) history.Note(job.At(second), kBegin + 1000 * second);
  FaultyFileSystem files;
  REQUIRE(files.CreateDirectories("/job").ok());
  REQUIRE(WriteHistory(&files, "/job", history.EncodeAll()).ok());
  const std::string path = HistoryPath("/job");
  const std::string good = files.Content(path);
  for (size_t at = 0; at < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    files.SetContent(path, bad);
    if (!absl::IsDataLoss(ReadHistory(&files, "/job").status())) FAIL("byte " << at << " may be anything");
    files.SetContent(path, good.substr(0, at));
    if (!absl::IsDataLoss(ReadHistory(&files, "/job").status())) FAIL("may end after " << at << " bytes");
  }
  files.Remove(path).IgnoreError();
  CHECK(absl::IsNotFound(ReadHistory(&files, "/job").status()));
}

TEST_CASE("event files have the frames that TensorFlow's have", "[history]") {
  CHECK(Crc32c("123456789") == 0xe3069283u);  // RFC 3720's way of computing it.
  CHECK(Crc32c(std::string(32, '\0')) == 0x8a9136aau);
  SimulatedStatus job(2);
  History history(7);
  for (int second = 1; second <= 5; ++second) {
    job.edit().set_updates(static_cast<uint64_t>(100 * second));
    history.Note(job.At(second), kBegin + 1000 * second);
  }
  FaultyFileSystem files;
  auto file = EventFile::Create(&files, "/runs/a", kBegin, "host");
  REQUIRE(file.ok());
  REQUIRE((*file)->Add(history.Encode("", 0), nullptr).ok());
  const std::string bytes = files.Content("/runs/a/events.out.tfevents.1700000000.host.0");
  const std::vector<TensorBoardEvent> events = ReadEvents(bytes);
  REQUIRE(events.size() == 6);
  CHECK(events[0].file_version() == "brain.Event:2");
  CHECK(events[5].step() == 500);
  CHECK(events[5].wall_time() == Approx(static_cast<double>(kBegin) / 1000 + 5));
  std::map<std::string, float> values;
  for (const auto& value : events[5].summary().value()) values[value.tag()] = value.simple_value();
  CHECK(values["train/loss"] == Approx(1.0 / 6));
  CHECK(values["train/workers"] == 2);
  CHECK(values.count("eval/loss") == 0);
}

TEST_CASE("evaluations before the first point of a file have the updates of that point, not none",
          "[history]") {
  SimulatedStatus job(1);
  History history(7);
  job.edit().set_updates(100);
  EvalEntry* entry = job.edit().add_evaluations();
  entry->set_data_epochs(1);
  entry->set_unix_ms(kBegin + 500);
  history.Note(job.At(1), kBegin + 1000);
  job.edit().set_updates(200);
  history.Note(job.At(2), kBegin + 2000);
  FaultyFileSystem files;
  auto file = EventFile::Create(&files, "/runs/a", kBegin, "host");
  REQUIRE(file.ok());
  REQUIRE((*file)->Add(history.Encode("", 0), nullptr).ok());
  const std::vector<TensorBoardEvent> events =
      ReadEvents(files.Content("/runs/a/events.out.tfevents.1700000000.host.0"));
  REQUIRE(events.size() == 4);
  REQUIRE(events[1].summary().value_size() == 2);
  CHECK(events[1].summary().value(0).tag() == "eval/accuracy");
  CHECK(events[1].step() == 100);
  CHECK(events[2].step() == 100);
  CHECK(events[3].step() == 200);
}

TEST_CASE("series that do not fit together are refused", "[history]") {
  constexpr const char* kNames[] = {"value"};
  Track good(kNames, {4, 3});
  for (int i = 0; i < 20; ++i) good.Add(kBegin + i, {1});
  const HistoryTrack encoded = good.Encode("w0", 0);
  Track track(kNames, {4, 3});
  track.Add(kBegin, {42});
  const auto refused = [&](const std::function<void(HistoryTrack*)>& damage) {
    HistoryTrack bad = encoded;
    damage(&bad);
    return absl::IsDataLoss(track.Restore(bad)) && track.points() == 1;
  };
  CHECK(refused([](HistoryTrack* bad) { bad->add_begin_ms(1); }));
  CHECK(refused([](HistoryTrack* bad) { bad->mutable_series(0)->mutable_mean()->RemoveLast(); }));
  CHECK(refused([](HistoryTrack* bad) { bad->set_samples(2, 0); }));
  CHECK(refused([](HistoryTrack* bad) { bad->set_end_ms(0, kBegin + 100); }));
  CHECK(refused([](HistoryTrack* bad) { bad->set_level(5, 99); }));
}

}  // namespace recon
