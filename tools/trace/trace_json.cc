#include "tools/trace/trace_json.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/trace/span_names.h"
#include "nlohmann/json.hpp"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kPieceBytes = size_t{1} << 20;

// Whatever is in a text, it is valid JSON.
std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

class Writer {
 public:
  Writer(const Timeline& timeline, const std::function<absl::Status(absl::string_view)>& write)
      : timeline_(timeline), write_(write) {
    for (const auto& [name, same] : timeline.names) quoted_[&same] = Quoted(name);
  }

  absl::Status Write() {
    text_ = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
    for (size_t i = 0; i < timeline_.processes.size(); ++i) RECON_RETURN_IF_ERROR(WriteProcess(i));
    for (const Timeline::Span& span : timeline_.spans) {
      RECON_RETURN_IF_ERROR(span.passive ? WritePassive(span) : WriteComplete(span));
    }
    RECON_RETURN_IF_ERROR(WriteArrows());
    absl::StrAppend(&text_, "\n],\"otherData\":",
                    OtherData().dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace), "}\n");
    return write_(text_);
  }

 private:
  using FrameKey = std::tuple<uint32_t, uint64_t, uint32_t>;

  absl::Status Next(const std::string& event) {
    absl::StrAppend(&text_, first_ ? "" : ",\n", event);
    first_ = false;
    if (text_.size() < kPieceBytes) return absl::OkStatus();
    RECON_RETURN_IF_ERROR(write_(text_));
    text_.clear();
    return absl::OkStatus();
  }

  absl::Status WriteMetadata(size_t process, uint32_t thread, const char* what, const std::string& argument) {
    return Next(absl::StrFormat(R"({"ph":"M","name":"%s","pid":%d,"tid":%d,"args":{%s}})", what, process + 1,
                                thread, argument));
  }

  absl::Status WriteProcess(size_t number) {
    const Timeline::Process& process = timeline_.processes[number];
    const TraceMember& member = process.member;
    RECON_RETURN_IF_ERROR(
        WriteMetadata(number, 0, "process_name", absl::StrCat("\"name\":", Quoted(ProcessTitle(member)))));
    RECON_RETURN_IF_ERROR(
        WriteMetadata(number, 0, "process_sort_index", absl::StrCat("\"sort_index\":", number)));
    const std::string label =
        absl::StrFormat("clock within %.3f ms, process %d of %s",
                        static_cast<double>(process.clock_error_ns) * 1e-6, member.process(), member.host());
    RECON_RETURN_IF_ERROR(
        WriteMetadata(number, 0, "process_labels", absl::StrCat("\"labels\":", Quoted(label))));
    for (const auto& [thread, name] : process.threads) {
      RECON_RETURN_IF_ERROR(
          WriteMetadata(number, thread, "thread_name", absl::StrCat("\"name\":", Quoted(name))));
    }
    return absl::OkStatus();
  }

  double Microseconds(int64_t ns) const { return static_cast<double>(ns - timeline_.begin_ns) * 1e-3; }

  // What all events of a span have alike.
  std::string Place(const Timeline::Span& span, char phase, int64_t at_ns) const {
    return absl::StrFormat(R"({"ph":"%c","pid":%d,"tid":%d,"ts":%.3f)", phase, span.process + 1, span.thread,
                           Microseconds(at_ns));
  }
  std::string Named(const Timeline::Span& span) const {
    const TraceRole role = timeline_.processes[span.process].member.role();
    return absl::StrCat(",\"name\":", quoted_.at(span.name), ",\"cat\":\"",
                        role == TRACE_ROLE_WORKER ? "worker" : "server", "\"");
  }
  // Of a frame or a push; or, of a closing, without a worker.
  static std::string Arguments(const trace::About& about) {
    if (about.worker == 0 && about.shard == 0) return "";
    std::string text = ",\"args\":{";
    if (about.worker != 0) absl::StrAppend(&text, "\"worker\":", about.worker - 1, ",");
    absl::StrAppend(&text, "\"step\":", about.step);
    if (about.shard != 0) absl::StrAppend(&text, ",\"shard\":", about.shard - 1);
    return absl::StrCat(text, "}");
  }

  absl::Status WriteComplete(const Timeline::Span& span) {
    if (span.about.shard != 0 && *span.name == trace::kSending) sent_[KeyOf(span)].push_back(&span);
    if (span.about.shard != 0 && *span.name == trace::kReceiving) received_[KeyOf(span)].push_back(&span);
    return Next(absl::StrCat(
        Place(span, 'X', span.begin_ns),
        absl::StrFormat(",\"dur\":%.3f", static_cast<double>(span.end_ns - span.begin_ns) * 1e-3),
        Named(span), Arguments(span.about), "}"));
  }

  absl::Status WritePassive(const Timeline::Span& span) {
    const std::string id = absl::StrFormat(",\"id\":\"0x%x\"", ++last_id_);
    RECON_RETURN_IF_ERROR(
        Next(absl::StrCat(Place(span, 'b', span.begin_ns), id, Named(span), Arguments(span.about), "}")));
    return Next(absl::StrCat(Place(span, 'e', span.end_ns), id, Named(span), "}"));
  }

  static FrameKey KeyOf(const Timeline::Span& span) {
    return {span.about.worker, span.about.step, span.about.shard};
  }

  // The n-th time that a frame was sent is the n-th that it was received, if it was sent more than once.
  absl::Status WriteArrows() {
    for (const auto& [key, sent] : sent_) {
      const auto received = received_.find(key);
      if (received == received_.end() || received->second.size() != sent.size()) continue;
      for (size_t i = 0; i < sent.size(); ++i) {
        const std::string id = absl::StrFormat(R"(,"id":"0x%x","name":"push","cat":"push")", ++last_id_);
        const int64_t begin_ns = sent[i]->begin_ns;
        RECON_RETURN_IF_ERROR(Next(absl::StrCat(Place(*sent[i], 's', begin_ns), id, "}")));
        // Clocks may say that it came before it was sent; no arrow leads back in time.
        const Timeline::Span& to = *received->second[i];
        const int64_t end_ns = std::clamp(begin_ns, to.begin_ns, to.end_ns);
        RECON_RETURN_IF_ERROR(
            Next(absl::StrCat(Place(to, 'f', std::max(begin_ns, end_ns)), id, ",\"bp\":\"e\"}")));
      }
    }
    return absl::OkStatus();
  }

  Json OtherData() const {
    Json data;
    data["seconds"] = static_cast<double>(timeline_.end_ns - timeline_.begin_ns) * 1e-9;
    data["clock_error_ms"] = static_cast<double>(timeline_.clock_error_ns()) * 1e-6;
    data["processes"] = Json::array();
    for (const Timeline::Process& process : timeline_.processes) {
      data["processes"].push_back({{"pid", data["processes"].size() + 1},
                                   {"name", ProcessTitle(process.member)},
                                   {"host", process.member.host()},
                                   {"process", process.member.process()},
                                   {"clock_error_ms", static_cast<double>(process.clock_error_ns) * 1e-6},
                                   {"spans", process.spans},
                                   {"dropped", process.dropped}});
    }
    data["lacking"] = Json::array();
    for (const TraceGap& gap : timeline_.gaps) {
      data["lacking"].push_back({{"name", ProcessTitle(gap.member())}, {"why", gap.why()}});
    }
    return data;
  }

  const Timeline& timeline_;
  const std::function<absl::Status(absl::string_view)>& write_;
  std::map<const std::string*, std::string> quoted_;
  std::map<FrameKey, std::vector<const Timeline::Span*>> sent_, received_;
  std::string text_;
  bool first_ = true;
  uint64_t last_id_ = 0;
};

}  // namespace

absl::Status WriteTraceJson(const Timeline& timeline,
                            const std::function<absl::Status(absl::string_view)>& write) {
  return Writer(timeline, write).Write();
}

}  // namespace recon
