#include <unistd.h>

#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/plain_text.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/trace_client.h"
#include "common/storage/file_system.h"
#include "nlohmann/json.hpp"
#include "tools/reconctl/verbs.h"
#include "tools/trace/step_times.h"
#include "tools/trace/timeline.h"
#include "tools/trace/trace_json.h"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

// A file that is there whole or not at all. The rest of its name is this process' number.
class WholeFile {
 public:
  explicit WholeFile(const std::string& path)
      : path_(path), unfinished_(absl::StrCat(path, ".unfinished-", getpid())) {}
  ~WholeFile() { FileSystem::Local()->Remove(unfinished_).IgnoreError(); }
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  // Before anything is recorded for it.
  absl::Status CheckWritable() {
    if (const absl::Status free = CheckReplaceable(path_); !free.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("-o ", free.message()));
    }
    const absl::Status created = FileSystem::Local()->Create(unfinished_).status();
    if (created.ok()) return FileSystem::Local()->Remove(unfinished_);
    return absl::InvalidArgumentError(absl::StrCat("-o ", path_, ": ", created.message()));
  }

  absl::Status Write(const Timeline& timeline) {
    FileSystem* files = FileSystem::Local();
    {
      RECON_ASSIGN_OR_RETURN(const auto file, files->Create(unfinished_));
      RECON_RETURN_IF_ERROR(
          WriteTraceJson(timeline, [&](absl::string_view piece) { return file->Append({piece}); }));
    }
    return files->Rename(unfinished_, path_);
  }

 private:
  const std::string path_, unfinished_;
};

absl::Status Check(const TraceTarget& target) {
  const absl::Duration length = absl::Seconds(target.seconds);
  if (!(length >= absl::Milliseconds(100) && length <= limits::kTraceMax)) {
    return absl::InvalidArgumentError(absl::StrCat("--seconds ", target.seconds, ": expected 0.1 to ",
                                                   absl::ToInt64Seconds(limits::kTraceMax)));
  }
  if (target.output.empty() && !target.explain) {
    return absl::InvalidArgumentError("-o FILE says where the trace goes; or use --explain");
  }
  return absl::OkStatus();
}

void PrintJson(const TraceTarget& target, const Timeline& timeline, const std::vector<std::string>& lines) {
  Json json;
  json["file"] = target.output;
  json["seconds"] = static_cast<double>(timeline.end_ns - timeline.begin_ns) * 1e-9;
  json["clock_error_ms"] = static_cast<double>(timeline.clock_error_ns()) * 1e-6;
  json["spans"] = timeline.spans.size();
  json["processes"] = Json::array();
  for (const Timeline::Process& process : timeline.processes) {
    json["processes"].push_back({{"name", ProcessTitle(process.member)},
                                 {"clock_error_ms", static_cast<double>(process.clock_error_ns) * 1e-6},
                                 {"spans", process.spans},
                                 {"dropped", process.dropped}});
  }
  json["lacking"] = Json::array();
  for (const TraceGap& gap : timeline.gaps) {
    json["lacking"].push_back({{"name", ProcessTitle(gap.member())}, {"why", gap.why()}});
  }
  json["workers"] = Json::array();
  for (const StepTimes& times : MeasureSteps(timeline)) {
    Json worker = {{"name", times.worker}, {"steps", times.steps}, {"step_ms", 1e3 * times.step_seconds()}};
    for (size_t i = 0; i < times.parts.size(); ++i) {
      worker["shares"][std::string(StepPartName(static_cast<StepPart>(i)))] = times.parts[i] / times.seconds;
    }
    json["workers"].push_back(std::move(worker));
  }
  json["explanation"] = lines;
  std::cout << json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace) << "\n";
}

void PrintText(const TraceTarget& target, const Timeline& timeline, const std::vector<std::string>& lines) {
  if (!target.output.empty()) {
    std::cout << absl::StrFormat(
        "%s: %d spans of %d processes in %.1f s, clocks within %.3g ms; ui.perfetto.dev opens it\n",
        EscapeControls(target.output), timeline.spans.size(), timeline.processes.size(),
        static_cast<double>(timeline.end_ns - timeline.begin_ns) * 1e-9,
        static_cast<double>(timeline.clock_error_ns()) * 1e-6);
  }
  if (target.explain) {
    for (const std::string& line : lines) std::cout << EscapeControls(line) << "\n";
  }
}

// To standard error: what was asked for is there all the same.
void SayWhatLacks(const Timeline& timeline) {
  for (const TraceGap& gap : timeline.gaps) {
    std::cerr << EscapeControls(absl::StrCat("lacking: ", ProcessTitle(gap.member()), ": ", gap.why()))
              << "\n";
  }
  for (const Timeline::Process& process : timeline.processes) {
    if (process.dropped == 0) continue;
    std::cerr << EscapeControls(absl::StrCat("lacking: ", ProcessTitle(process.member), ": ", process.dropped,
                                             " spans that it had no room for, or that did not arrive"))
              << "\n";
  }
}

}  // namespace

absl::Status RecordTrace(const TraceTarget& target) {
  RECON_RETURN_IF_ERROR(Check(target));
  WholeFile file(target.output);
  if (!target.output.empty()) RECON_RETURN_IF_ERROR(file.CheckWritable());
  RECON_ASSIGN_OR_RETURN(const auto channel, ConnectTo(target.server.address, target.server.tls));
  RECON_ASSIGN_OR_RETURN(const Caller caller, CallerFor(target.server.tls));
  TimelineBuilder builder;
  absl::Status malformed;
  const absl::Status recorded =
      TraceClient(channel, caller).Record(absl::Seconds(target.seconds), [&](TraceUpdate update) {
        malformed.Update(builder.Add(std::move(update)));
      });
  RECON_RETURN_IF_ERROR(malformed);
  if (!builder.begun()) {
    return recorded.ok() ? absl::InternalError("the server has recorded nothing") : recorded;
  }
  // What there is of a trace whose server has gone is better than nothing.
  const Timeline timeline = builder.Build();
  if (!target.output.empty()) RECON_RETURN_IF_ERROR(file.Write(timeline));
  const std::vector<std::string> lines = ExplainSteps(timeline);
  SayWhatLacks(timeline);
  target.server.json ? PrintJson(target, timeline, lines) : PrintText(target, timeline, lines);
  return recorded;
}

}  // namespace recon
