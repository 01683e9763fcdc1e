#include "tools/trace/trace_json.h"

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/tools/trace_updates.h"

namespace recon {
namespace {

using Json = nlohmann::json;
using trace::About;

Json JsonOf(const Timeline& timeline) {
  std::string text;
  REQUIRE(WriteTraceJson(timeline, [&](absl::string_view piece) {
            text.append(piece.data(), piece.size());
            return absl::OkStatus();
          }).ok());
  return Json::parse(text);
}

// Of one phase, and with this name.
std::vector<Json> EventsOf(const Json& json, const std::string& phase, const std::string& name) {
  std::vector<Json> events;
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] == phase && event["name"] == name) events.push_back(event);
  }
  return events;
}

std::pair<int, int> ThreadOf(const Json& event) { return {event["pid"].get<int>(), event["tid"].get<int>()}; }

// A push of worker 2 to the head, whose clock is 5 s behind.
Timeline OnePush() {
  TraceUpdates updates(1000, 2000);
  const About frame = About::Frame(2, 7, 0);
  updates.AddServer(0, {{trace::kReceiving, 1110.5, 1112, frame},
                        {trace::kFrame, 1110, 1130, frame, /*passive=*/true},
                        {trace::kApplying, 1113, 1120, frame, false, 2}});
  updates.AddWorker(2, "gpu\"0\n\xff",
                    {{trace::kComputing, 1000, 1100, About::Push(2, 7)},
                     {trace::kSending, 1101, 1103, frame, false, 3},
                     {trace::kUnderWay, 1102, 1131, frame, true, 3}},
                    5000);
  updates.AddGap("gpu9", "it has delivered nothing");
  return updates.Build();
}

}  // namespace

TEST_CASE("a trace's events are what the format asks for, on one clock", "[trace]") {
  const Json json = JsonOf(OnePush());
  std::map<std::string, int> phases;
  for (const Json& event : json["traceEvents"]) {
    const std::string phase = event["ph"];
    ++phases[phase];
    REQUIRE(event["pid"].is_number_unsigned());
    REQUIRE(event["tid"].is_number_unsigned());
    REQUIRE(event["name"].is_string());
    if (phase == "M") {
      CHECK(event["args"].size() == 1);
      continue;
    }
    REQUIRE(event["ts"].get<double>() >= 0);
    REQUIRE(event["ts"].get<double>() <= 1e6);
    CHECK(event["cat"].is_string());
    if (phase == "X") {
      CHECK(event["dur"].get<double>() >= 0);
    } else {
      CHECK(event["id"].get<std::string>().rfind("0x", 0) == 0);
    }
  }
  // Two processes with three lines each, and their four threads.
  CHECK(phases == std::map<std::string, int>{{"M", 10}, {"X", 4}, {"b", 2}, {"e", 2}, {"s", 1}, {"f", 1}});
  const Json computing = EventsOf(json, "X", "computing")[0];
  CHECK(std::abs(computing["dur"].get<double>() - 100'000) < 1);
  CHECK(computing["args"] == Json{{"worker", 2}, {"step", 7}});
  const Json applied = EventsOf(json, "X", "apply")[0];
  CHECK(applied["args"] == Json{{"worker", 2}, {"step", 7}, {"shard", 0}});
  CHECK(applied["ts"].get<double>() == 113'000);
  CHECK(applied["pid"] != computing["pid"]);
}

TEST_CASE("every event's process and thread has a name, whatever is in it", "[trace]") {
  const Json json = JsonOf(OnePush());
  std::set<int> processes;
  std::set<std::pair<int, int>> threads;
  for (const Json& event : EventsOf(json, "M", "process_name")) processes.insert(event["pid"].get<int>());
  for (const Json& event : EventsOf(json, "M", "thread_name")) threads.insert(ThreadOf(event));
  for (const Json& event : json["traceEvents"]) {
    if (event["ph"] == "M") continue;
    CHECK(processes.count(event["pid"].get<int>()) == 1);
    CHECK(threads.count(ThreadOf(event)) == 1);
  }
  CHECK(EventsOf(json, "M", "process_name")[0]["args"]["name"] == "head 10.0.0.0:7070");
  CHECK(EventsOf(json, "M", "process_name")[1]["args"]["name"] == "worker 2 gpu\"0\n\xef\xbf\xbd");
}

TEST_CASE("an arrow leads from a frame's sending to its receiving, never back in time", "[trace]") {
  const Json json = JsonOf(OnePush());
  const Json from = EventsOf(json, "s", "push")[0];
  const Json to = EventsOf(json, "f", "push")[0];
  CHECK(from["id"] == to["id"]);
  CHECK(to["bp"] == "e");
  CHECK(from["tid"] == 3);
  CHECK(from["pid"] == 2);
  CHECK(to["pid"] == 1);
  CHECK(std::abs(from["ts"].get<double>() - 101'000) < 200);
  CHECK(std::abs(to["ts"].get<double>() - 110'500) < 1);

  // By clocks that are wrong it was received before it was sent.
  TraceUpdates updates(1000, 2000);
  const About frame = About::Frame(2, 7, 0);
  updates.AddServer(0, {{trace::kReceiving, 1100.0, 1101, frame}});
  updates.AddWorker(2, "a", {{trace::kSending, 1100.5, 1103, frame}});
  const Json back = JsonOf(updates.Build());
  CHECK(EventsOf(back, "f", "push")[0]["ts"] >= EventsOf(back, "s", "push")[0]["ts"]);
}

TEST_CASE("a trace says how far clocks may be wrong, what was dropped and whose spans lack", "[trace]") {
  const Timeline timeline = OnePush();
  // Half of the 0.2 ms that a question took, and what clocks may drift in half a second.
  CHECK(timeline.clock_error_ns() == 100'000 + 250'000);
  const Json other = JsonOf(timeline)["otherData"];
  CHECK(std::abs(other["clock_error_ms"].get<double>() - 0.35) < 1e-9);
  REQUIRE(other["processes"].size() == 2);
  CHECK(other["processes"][0]["clock_error_ms"] == 0);
  CHECK(other["processes"][1]["spans"] == 3);
  CHECK(other["processes"][1]["process"] == 1002);
  CHECK(other["lacking"] == Json::array({{{"name", "worker 0 gpu9"}, {"why", "it has delivered nothing"}}}));
}

TEST_CASE("spans are cut to the time that was asked for", "[trace]") {
  TraceUpdates updates(1000, 2000);
  updates.AddServer(
      0, {{"before", 900, 990}, {"into", 990, 1010}, {"out of", 1990, 2010}, {"after", 2001, 2010}});
  const Json json = JsonOf(updates.Build());
  CHECK(EventsOf(json, "X", "before").empty());
  CHECK(EventsOf(json, "X", "after").empty());
  CHECK(EventsOf(json, "X", "into")[0]["ts"] == 0);
  CHECK(EventsOf(json, "X", "into")[0]["dur"] == 10'000);
  CHECK(EventsOf(json, "X", "out of")[0]["dur"] == 10'000);
}

TEST_CASE("a process whose clock was never read is left out, and named", "[trace]") {
  TimelineBuilder builder;
  TraceUpdate update;
  update.mutable_begun()->set_end_ns(1'000'000'000);
  REQUIRE(builder.Add(update).ok());
  trace::SpanPieces pieces;
  pieces.Add({1, "main"}, {trace::kComputing, 1000, 2000, {}, false});
  *update.mutable_delivery() = pieces.Take();
  update.mutable_delivery()->mutable_member()->set_name("gpu3");
  REQUIRE(builder.Add(update).ok());
  const Timeline timeline = builder.Build();
  CHECK(timeline.spans.empty());
  REQUIRE(timeline.gaps.size() == 1);
  CHECK(timeline.gaps[0].member().name() == "gpu3");
}

}  // namespace recon
