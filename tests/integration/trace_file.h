#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/support/temp_dir.h"

namespace recon {

// A file in the Trace Event Format, as a viewer reads it. Times are microseconds.
class TraceFile {
 public:
  struct Span {
    int process = 0;
    int64_t thread = 0;
    std::string name;
    double begin = 0, end = 0;
    nlohmann::json arguments;
  };
  // Worker, step, shard.
  using Frame = std::tuple<int, uint64_t, int>;

  // Checks on the way that it is by the format's rules.
  explicit TraceFile(const std::string& path) : json_(nlohmann::json::parse(ReadWholeFile(path))) {
    std::map<std::pair<std::string, std::string>, Span> open;  // By category and id.
    std::map<std::string, std::pair<int, double>> arrows;      // How many ends, and the first one's time.
    for (const nlohmann::json& event : json_["traceEvents"]) {
      const std::string phase = event["ph"];
      Span span{event["pid"].get<int>(), event["tid"].get<int64_t>(), event["name"], 0, 0, {}};
      if (phase == "M") {
        if (span.name == "process_name") processes_[span.process] = event["args"]["name"];
        if (span.name == "thread_name") threads_.insert({span.process, span.thread});
        continue;
      }
      REQUIRE(processes_.count(span.process) == 1);
      REQUIRE(threads_.count({span.process, span.thread}) == 1);
      const auto at = event["ts"].get<double>();
      REQUIRE(at >= 0);
      if (event.contains("args")) span.arguments = event["args"];
      span.begin = at;
      if (phase == "X") {
        span.end = at + event["dur"].get<double>();
        REQUIRE(span.end >= at);
        spans_.push_back(span);
      } else if (phase == "b") {
        const bool is_new = open.insert({{event["cat"], event["id"]}, span}).second;
        REQUIRE(is_new);
      } else if (phase == "e") {
        const auto begun = open.find({event["cat"], event["id"]});
        REQUIRE(begun != open.end());
        REQUIRE(begun->second.name == span.name);
        begun->second.end = at;
        REQUIRE(begun->second.end >= begun->second.begin);
        spans_.push_back(begun->second);
        open.erase(begun);
      } else {
        REQUIRE((phase == "s" || phase == "f"));
        auto& [ends, first] = arrows[event["id"].get<std::string>()];
        REQUIRE(ends == (phase == "s" ? 0 : 1));
        if (ends++ == 0) first = at;
        REQUIRE(at >= first);
      }
    }
    REQUIRE(open.empty());
    for (const auto& [id, arrow] : arrows) REQUIRE(arrow.first == 2);
    arrows_ = arrows.size();
    CheckNesting();
  }

  const std::map<int, std::string>& processes() const { return processes_; }
  size_t arrows() const { return arrows_; }
  const nlohmann::json& other() const { return json_["otherData"]; }
  // Of a process whose name begins so; 0 if there is none.
  int ProcessOf(const std::string& begin) const {
    for (const auto& [number, name] : processes_) {
      if (name.rfind(begin, 0) == 0) return number;
    }
    return 0;
  }
  std::set<std::string> NamesOf(int process) const {
    std::set<std::string> names;
    for (const Span& span : spans_) {
      if (span.process == process) names.insert(span.name);
    }
    return names;
  }
  const std::vector<Span>& spans() const { return spans_; }
  double ErrorOf(int process) const {
    return 1000 * other()["processes"][process - 1]["clock_error_ms"].get<double>();
  }
  // Of each frame the spans of that name.
  std::map<Frame, std::vector<Span>> Frames(const std::string& name) const {
    std::map<Frame, std::vector<Span>> frames;
    for (const Span& span : spans_) {
      if (span.name != name || !span.arguments.contains("worker") || !span.arguments.contains("shard"))
        continue;
      frames[{span.arguments["worker"], span.arguments["step"], span.arguments["shard"]}].push_back(span);
    }
    return frames;
  }

 private:
  // What a thread did lies within, or beside, what else it did.
  void CheckNesting() {
    std::map<std::pair<int, int64_t>, std::vector<double>> around;  // Ends, the innermost last.
    constexpr double kRounding = 0.0021;  // Begin and length are rounded to nanoseconds.
    for (const nlohmann::json& event : json_["traceEvents"]) {
      if (event["ph"] != "X") continue;
      std::vector<double>& ends = around[{event["pid"], event["tid"]}];
      const double begin = event["ts"], end = begin + event["dur"].get<double>();
      while (!ends.empty() && ends.back() <= begin + kRounding) ends.pop_back();
      INFO(event.dump());
      if (!ends.empty()) REQUIRE(end <= ends.back() + kRounding);
      ends.push_back(end);
    }
  }

  nlohmann::json json_;
  std::map<int, std::string> processes_;
  std::set<std::pair<int, int64_t>> threads_;
  std::vector<Span> spans_;
  size_t arrows_ = 0;
};

}  // namespace recon
