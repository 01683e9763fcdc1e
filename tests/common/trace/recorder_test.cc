#include "common/trace/recorder.h"

#include <pthread.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/limits.h"

namespace recon::trace {
namespace {

constexpr int64_t kHour = 3'600'000'000'000;

std::unique_ptr<Recording> BeginForAnHour() { return Recording::Begin(MonotonicNanos() + kHour); }

struct Drained {
  std::map<std::string, std::vector<Event>> events;  // By thread.
  uint64_t lost = 0;
  size_t size() const {
    size_t all = 0;
    for (const auto& [thread, of] : events) all += of.size();
    return all;
  }
};

void DrainInto(Recording* recording, Drained* drained) {
  drained->lost += recording->Drain([&](const Recording::Thread& thread, const Event& event) {
    drained->events[thread.name].push_back(event);
  });
}

// A thread of that name that records spans about steps 0, 1...
std::thread Recorder(const char* name, uint64_t spans) {
  return std::thread([name, spans] {
    pthread_setname_np(pthread_self(), name);
    for (uint64_t step = 0; step < spans; ++step) const Span span("work", About::Push(3, step));
  });
}

}  // namespace

TEST_CASE("spans are recorded from a recording's begin to its stop, and of no other time", "[trace]") {
  { const Span before("before"); }
  const auto recording = BeginForAnHour();
  REQUIRE(recording != nullptr);
  CHECK(On());
  const int64_t begin_ns = MonotonicNanos();
  { const Span span("during", About::Frame(2, 7, 5)); }
  RecordPassive("waited", begin_ns, About::Push(2, 8));
  recording->Stop();
  CHECK_FALSE(On());
  { const Span after("after"); }
  Drained drained;
  DrainInto(recording.get(), &drained);
  REQUIRE(drained.events.size() == 1);
  const std::vector<Event>& events = drained.events.begin()->second;
  REQUIRE(events.size() == 2);
  CHECK(std::string(events[0].name) == "during");
  CHECK(events[0].about.worker == 3);
  CHECK(events[0].about.step == 7);
  CHECK(events[0].about.shard == 6);
  CHECK_FALSE(events[0].passive);
  CHECK(events[0].begin_ns >= begin_ns);
  CHECK(events[0].end_ns >= events[0].begin_ns);
  CHECK(events[1].passive);
  CHECK(events[1].begin_ns == begin_ns);
}

TEST_CASE("a process has one recording at a time, and the next one has nothing of the one before",
          "[trace]") {
  auto first = BeginForAnHour();
  REQUIRE(first != nullptr);
  CHECK(BeginForAnHour() == nullptr);
  { const Span span("of the first"); }
  first.reset();
  CHECK_FALSE(On());
  const auto second = BeginForAnHour();
  REQUIRE(second != nullptr);
  Drained drained;
  DrainInto(second.get(), &drained);
  CHECK(drained.size() == 0);
}

TEST_CASE("spans that end beyond the deadline are not kept, and turn recording off", "[trace]") {
  const auto recording = Recording::Begin(MonotonicNanos() - 1);
  REQUIRE(recording != nullptr);
  CHECK(On());
  { const Span span("late"); }
  CHECK_FALSE(On());
  Drained drained;
  DrainInto(recording.get(), &drained);
  CHECK(drained.size() == 0);
}

TEST_CASE("what a thread has no room for is counted, and what it had is kept", "[trace]") {
  const auto recording = BeginForAnHour();
  REQUIRE(recording != nullptr);
  Recorder("busy", limits::kTraceThreadSpansMax + 5).join();
  Drained drained;
  DrainInto(recording.get(), &drained);
  REQUIRE(drained.events["busy"].size() == limits::kTraceThreadSpansMax);
  CHECK(drained.lost == 5);
  for (uint64_t i = 0; i < limits::kTraceThreadSpansMax; ++i)
    REQUIRE(drained.events["busy"][i].about.step == i);
  DrainInto(recording.get(), &drained);
  CHECK(drained.lost == 5);
}

TEST_CASE("threads that end leave their rings to others, and too many at once lose theirs", "[trace]") {
  const auto recording = BeginForAnHour();
  REQUIRE(recording != nullptr);
  Drained drained;
  // Twice as many as there are rings, drained on the way.
  for (size_t i = 0; i < 2 * limits::kTraceThreadsMax; ++i) {
    Recorder("short", 1).join();
    if (i % 10 == 0) DrainInto(recording.get(), &drained);
  }
  DrainInto(recording.get(), &drained);
  CHECK(drained.events["short"].size() == 2 * limits::kTraceThreadsMax);
  CHECK(drained.lost == 0);
  // Nobody drains: the rings of those that ended are not free.
  for (size_t i = 0; i < limits::kTraceThreadsMax + 3; ++i) Recorder("many", 1).join();
  DrainInto(recording.get(), &drained);
  CHECK(drained.events["many"].size() + drained.lost == limits::kTraceThreadsMax + 3);
  CHECK(drained.lost >= 3);
}

TEST_CASE("threads record while another one drains: each span comes once, in its thread's order", "[trace]") {
  const auto recording = BeginForAnHour();
  REQUIRE(recording != nullptr);
  constexpr uint64_t kSpans = 50'000;
  std::vector<std::thread> threads;
  for (const char* name : {"one", "two", "three"}) threads.push_back(Recorder(name, kSpans));
  std::atomic<bool> ended{false};
  std::thread joiner([&] {
    for (std::thread& thread : threads) thread.join();
    ended = true;
  });
  Drained drained;
  while (!ended) DrainInto(recording.get(), &drained);
  joiner.join();
  DrainInto(recording.get(), &drained);
  CHECK(drained.size() + drained.lost == 3 * kSpans);
  for (const auto& [thread, events] : drained.events) {
    INFO(thread);
    for (size_t i = 1; i < events.size(); ++i) REQUIRE(events[i - 1].about.step < events[i].about.step);
  }
}

}  // namespace recon::trace
