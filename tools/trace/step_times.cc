#include "tools/trace/step_times.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/trace/span_names.h"

namespace recon {
namespace {

constexpr size_t kParts = static_cast<size_t>(StepPart::kCount);
// Less of a step is not worth a word.
constexpr double kShownMin = 0.005;
// Computing that takes so many times the middle worker's is why others wait.
constexpr double kMuchSlower = 1.2;

using FrameKey = std::tuple<uint32_t, uint64_t, uint32_t>;

FrameKey KeyOf(const Timeline::Span& span) { return {span.about.worker, span.about.step, span.about.shard}; }

struct Interval {
  int64_t begin_ns, end_ns;
  StepPart part;
};

// What servers did with a frame. The later of two parts counts where both are at once: it is applied while
// another of its shards waits for it.
using FramesAtServers = std::map<FrameKey, std::vector<Interval>>;

bool IsServer(const Timeline& timeline, const Timeline::Span& span) {
  return timeline.processes[span.process].member.role() == TRACE_ROLE_SERVER;
}

FramesAtServers CollectFrames(const Timeline& timeline) {
  static const std::map<std::string, StepPart> kPartOf = {{trace::kFrame, StepPart::kServer},
                                                          {trace::kLogging, StepPart::kLog},
                                                          {trace::kApplying, StepPart::kApply},
                                                          {trace::kWaitingForOthers, StepPart::kOthers}};
  FramesAtServers frames;
  for (const Timeline::Span& span : timeline.spans) {
    if (span.about.shard == 0 || !IsServer(timeline, span)) continue;
    if (const auto part = kPartOf.find(*span.name); part != kPartOf.end()) {
      frames[KeyOf(span)].push_back({span.begin_ns, span.end_ns, part->second});
    }
  }
  return frames;
}

// Which of a frame's parts counts, the higher the sooner.
int RankOf(StepPart part) {
  switch (part) {
    case StepPart::kOthers:
      return 4;
    case StepPart::kApply:
      return 3;
    case StepPart::kLog:
      return 2;
    case StepPart::kServer:
      return 1;
    default:
      return 0;  // The link.
  }
}

// Counts what is going on, from change to change, for one worker.
class Sweep {
 public:
  void Add(StepPart part, int64_t begin_ns, int64_t end_ns) {
    if (begin_ns >= end_ns) return;
    changes_.push_back({begin_ns, static_cast<int>(part), 1});
    changes_.push_back({end_ns, static_cast<int>(part), -1});
  }
  // The training thread waits for its pushes.
  void AddWait(int64_t begin_ns, int64_t end_ns) { Add(kWaiting, begin_ns, end_ns); }

  // A frame under way, in the pieces that what servers say of it makes.
  void AddFrame(const Timeline::Span& under_way, const std::vector<Interval>& at_servers) {
    std::vector<int64_t> cuts = {under_way.begin_ns, under_way.end_ns};
    for (const Interval& interval : at_servers) {
      for (const int64_t at : {interval.begin_ns, interval.end_ns}) {
        if (at > under_way.begin_ns && at < under_way.end_ns) cuts.push_back(at);
      }
    }
    std::sort(cuts.begin(), cuts.end());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      StepPart part = StepPart::kLink;
      for (const Interval& interval : at_servers) {
        const bool now = interval.begin_ns <= cuts[i] && interval.end_ns >= cuts[i + 1];
        if (now && RankOf(interval.part) > RankOf(part)) part = interval.part;
      }
      Add(part, cuts[i], cuts[i + 1]);
    }
  }

  void Measure(int64_t begin_ns, int64_t end_ns, StepTimes* times) {
    std::sort(changes_.begin(), changes_.end(),
              [](const Change& a, const Change& b) { return a.at_ns < b.at_ns; });
    int64_t at_ns = begin_ns;
    for (const Change& change : changes_) {
      const int64_t until = std::clamp(change.at_ns, begin_ns, end_ns);
      Spend(static_cast<double>(until - at_ns) * 1e-9, times);
      at_ns = std::max(at_ns, until);
      count_[static_cast<size_t>(change.part)] += change.by;
    }
    Spend(static_cast<double>(end_ns - at_ns) * 1e-9, times);
  }

 private:
  static constexpr StepPart kWaiting = StepPart::kCount;
  struct Change {
    int64_t at_ns;
    int part;
    int by;
  };

  int Count(StepPart part) const { return count_[static_cast<size_t>(part)]; }

  void Spend(double seconds, StepTimes* times) const {
    if (seconds <= 0) return;
    const auto spend = [&](StepPart part, double share) {
      times->parts[static_cast<size_t>(part)] += seconds * share;
    };
    if (Count(kWaiting) > 0) return SpendWaiting(spend);
    for (const StepPart part :
         {StepPart::kPulling, StepPart::kEvaluating, StepPart::kWork, StepPart::kComputing}) {
      if (Count(part) > 0) return spend(part, 1);
    }
    spend(StepPart::kRest, 1);
  }

  template <typename SpendOne>
  void SpendWaiting(const SpendOne& spend) const {
    constexpr StepPart kMoving[] = {StepPart::kLink, StepPart::kServer, StepPart::kLog, StepPart::kApply};
    int moving = 0;
    for (const StepPart part : kMoving) moving += Count(part);
    if (moving > 0) {
      for (const StepPart part : kMoving) spend(part, static_cast<double>(Count(part)) / moving);
    } else if (Count(StepPart::kOthers) > 0) {
      spend(StepPart::kOthers, 1);
    } else {
      spend(Count(StepPart::kEncoding) > 0 ? StepPart::kEncoding : StepPart::kRest, 1);
    }
  }

  std::vector<Change> changes_;
  std::array<int, kParts + 1> count_ = {};
};

StepTimes MeasureWorker(const Timeline& timeline, size_t process, const FramesAtServers& frames,
                        const std::vector<const Timeline::Span*>& spans) {
  static const std::map<std::string, StepPart> kPartOf = {
      {trace::kComputing, StepPart::kComputing},    {trace::kEvaluating, StepPart::kEvaluating},
      {trace::kPulling, StepPart::kPulling},        {trace::kWaitingForWork, StepPart::kWork},
      {trace::kCompleting, StepPart::kWork},        {trace::kEncoding, StepPart::kEncoding},
      {trace::kWaitingForRollback, StepPart::kWork}};
  static const std::vector<Interval> kNowhere;
  StepTimes times;
  times.worker = timeline.processes[process].member.name();
  Sweep sweep;
  std::set<std::pair<uint32_t, uint64_t>> steps;
  int64_t last_ns = timeline.begin_ns;
  for (const Timeline::Span* span : spans) {
    last_ns = std::max(last_ns, span->end_ns);
    if (*span->name == trace::kUnderWay) {
      steps.insert({span->about.worker, span->about.step});
      const auto at_servers = frames.find(KeyOf(*span));
      sweep.AddFrame(*span, at_servers == frames.end() ? kNowhere : at_servers->second);
    } else if (*span->name == trace::kWaitingForPushes) {
      sweep.AddWait(span->begin_ns, span->end_ns);
    } else if (const auto part = kPartOf.find(*span->name); part != kPartOf.end()) {
      sweep.Add(part->second, span->begin_ns, span->end_ns);
    }
  }
  times.steps = steps.size();
  times.seconds = static_cast<double>(last_ns - timeline.begin_ns) * 1e-9;
  sweep.Measure(timeline.begin_ns, last_ns, &times);
  return times;
}

std::string PartsLine(const char* which, const StepTimes& times) {
  std::vector<std::pair<double, StepPart>> parts;
  for (size_t i = 0; i < kParts; ++i) {
    if (times.parts[i] >= kShownMin * times.seconds)
      parts.push_back({times.parts[i], static_cast<StepPart>(i)});
  }
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string line =
      absl::StrFormat("%s %s, %.3g ms a step:", which, times.worker, 1e3 * times.step_seconds());
  const char* comma = " ";
  for (const auto& [seconds, part] : parts) {
    absl::StrAppendFormat(&line, "%s%s %.3g ms (%.0f %%)", std::exchange(comma, ", "), StepPartName(part),
                          1e3 * seconds / static_cast<double>(times.steps), 100 * seconds / times.seconds);
  }
  return line;
}

// What a person would do about the largest part of the slowest worker's steps.
std::string Advice(const StepTimes& slowest, const StepTimes& median) {
  const auto largest = std::max_element(slowest.parts.begin(), slowest.parts.end());
  const auto part = static_cast<StepPart>(largest - slowest.parts.begin());
  const double ratio = (slowest.of(StepPart::kComputing) / static_cast<double>(slowest.steps)) /
                       std::max(1e-9, median.of(StepPart::kComputing) / static_cast<double>(median.steps));
  if (part == StepPart::kComputing && ratio >= kMuchSlower) {
    return absl::StrFormat("%s computes %.1f times as long as %s", slowest.worker, ratio, median.worker);
  }
  switch (part) {
    case StepPart::kComputing:
      return "most of a step is computing: that is as it should be";
    case StepPart::kLink:
      return "most is the way of bytes to the servers and back: fewer (--codec, --pull-codec) or fewer "
             "pushes "
             "(--sync local:H) help";
    case StepPart::kOthers:
      return "most is waiting for other workers' pushes: a looser --sync, or --quorum, helps";
    case StepPart::kLog:
      return "most is the push log: a faster disk for --data, or fewer bytes (--codec), helps";
    case StepPart::kServer:
    case StepPart::kApply:
      return "most is the servers' work: more --apply-threads, or more --servers, help";
    case StepPart::kEncoding:
      return "most is encoding: a simpler --codec helps";
    case StepPart::kRest:
      return "most is between batches, where data is read and the script does what else it does";
    default:
      return absl::StrCat("most is ", StepPartName(part));
  }
}

}  // namespace

absl::string_view StepPartName(StepPart part) {
  switch (part) {
    case StepPart::kComputing:
      return "computing";
    case StepPart::kEvaluating:
      return "evaluating";
    case StepPart::kOthers:
      return "waiting for others";
    case StepPart::kLink:
      return "link";
    case StepPart::kServer:
      return "server";
    case StepPart::kLog:
      return "push log";
    case StepPart::kApply:
      return "apply";
    case StepPart::kEncoding:
      return "encoding";
    case StepPart::kPulling:
      return "pulling parameters";
    case StepPart::kWork:
      return "waiting for work";
    default:
      return "between batches";
  }
}

std::vector<StepTimes> MeasureSteps(const Timeline& timeline) {
  const FramesAtServers frames = CollectFrames(timeline);
  std::vector<std::vector<const Timeline::Span*>> spans(timeline.processes.size());
  for (const Timeline::Span& span : timeline.spans) spans[span.process].push_back(&span);
  std::vector<StepTimes> workers;
  for (size_t i = 0; i < timeline.processes.size(); ++i) {
    if (timeline.processes[i].member.role() != TRACE_ROLE_WORKER) continue;
    StepTimes times = MeasureWorker(timeline, i, frames, spans[i]);
    if (times.steps > 0 && times.seconds > 0) workers.push_back(std::move(times));
  }
  std::stable_sort(workers.begin(), workers.end(),
                   [](const StepTimes& a, const StepTimes& b) { return a.own_seconds() > b.own_seconds(); });
  return workers;
}

std::vector<std::string> ExplainSteps(const Timeline& timeline) {
  const std::vector<StepTimes> workers = MeasureSteps(timeline);
  const auto servers =
      std::count_if(timeline.processes.begin(), timeline.processes.end(),
                    [](const auto& process) { return process.member.role() == TRACE_ROLE_SERVER; });
  const std::string about = absl::StrFormat(
      "%.1f s, %d workers that push, %d server%s, clocks within %.3g ms",
      static_cast<double>(timeline.end_ns - timeline.begin_ns) * 1e-9, workers.size(), servers,
      servers == 1 ? "" : "s", static_cast<double>(timeline.clock_error_ns()) * 1e-6);
  if (workers.empty()) {
    return {"slowest: no worker has pushed anything", "median: none",
            absl::StrCat("nothing to explain (", about, ")")};
  }
  const StepTimes& slowest = workers.front();
  const StepTimes& median = workers[workers.size() / 2];
  return {PartsLine("slowest:", slowest), PartsLine("median: ", median),
          absl::StrCat(Advice(slowest, median), " (", about, ")")};
}

}  // namespace recon
