#include "server/dashboard/job_json.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/plain_text.h"
#include "common/json/escape_texts.h"
#include "common/json/message_json.h"
#include "nlohmann/json.hpp"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

std::string Quoted(const std::string& text) { return JsonText(EscapeControls(text)); }

// Six digits: what a chart shows.
void AppendNumber(double value, std::string* out) {
  if (std::isfinite(value)) {
    absl::StrAppend(out, static_cast<float>(value));
  } else {
    absl::StrAppend(out, "null");
  }
}

template <typename List>
void AppendList(const char* name, const List& list, std::string* out) {
  absl::StrAppend(out, "\"", name, "\":[");
  bool first = true;
  for (const auto value : list) {
    if (!first) absl::StrAppend(out, ",");
    first = false;
    if constexpr (std::is_floating_point_v<std::decay_t<decltype(value)>>) {
      AppendNumber(value, out);
    } else {
      absl::StrAppend(out, value);
    }
  }
  absl::StrAppend(out, "]");
}

bool Spread(const HistorySeries& series) {
  for (int i = 0; i < series.mean_size(); ++i) {
    if (series.min(i) < series.max(i)) return true;
  }
  return false;
}

std::string TrackJson(const HistoryTrack& track) {
  std::string out = absl::StrCat("{\"name\":", Quoted(track.name()), ",");
  AppendList("begin_ms", track.begin_ms(), &out);
  out += ",";
  AppendList("end_ms", track.end_ms(), &out);
  out += ",\"series\":{";
  for (int i = 0; i < track.series_size(); ++i) {
    const HistorySeries& series = track.series(i);
    absl::StrAppend(&out, i == 0 ? "" : ",", Quoted(series.name()), ":{");
    AppendList("mean", series.mean(), &out);
    if (Spread(series)) {
      out += ",";
      AppendList("min", series.min(), &out);
      out += ",";
      AppendList("max", series.max(), &out);
    }
    out += "}";
  }
  return out + "}}";
}

// Null for what is not known, as JSON has no NaN.
Json Known(float value) { return std::isfinite(value) ? Json(value) : Json(); }

}  // namespace

std::string LiveJson(const StatusReply& status, const History& history) {
  StatusReply job = status;
  job.clear_members();
  job.clear_evaluations();
  EscapeTexts(&job);
  Json columns = Json::object();
  const WorkerRates unknown;
  for (const MemberStatus& member : status.members()) {
    const WorkerProgress& progress = member.progress();
    const WorkerRates* found = history.RatesOf(member.name());
    const WorkerRates& rates = found == nullptr ? unknown : *found;
    columns["name"].push_back(EscapeControls(member.name()));
    columns["state"].push_back(MemberState_Name(member.state()));
    columns["step"].push_back(member.next_step());
    columns["pushes"].push_back(member.pushes());
    columns["staleness"].push_back(member.staleness_mean());
    columns["samples_per_second"].push_back(progress.samples_per_second());
    columns["loss"].push_back(progress.batches() == 0 ? Json() : Json(progress.last_loss()));
    columns["batch_seconds"].push_back(progress.batch_seconds());
    columns["computing"].push_back(Known(rates.computing));
    columns["waiting"].push_back(Known(rates.waiting));
    columns["link"].push_back(Known(rates.link));
    columns["push_bytes_per_second"].push_back(Known(rates.push_bytes_per_second));
    columns["push_latency_ms"].push_back(Known(rates.push_latency_ms));
    columns["heard_ms"].push_back(member.heartbeat_age_ms());
    columns["device"].push_back(EscapeControls(member.device()));
    const DeviceStatus& device = progress.device_status();
    columns["utilization"].push_back(device.has_utilization() ? Json(device.utilization()) : Json());
    columns["memory_used_bytes"].push_back(device.has_memory_used_bytes() ? Json(device.memory_used_bytes())
                                                                          : Json());
    columns["memory_total_bytes"].push_back(
        device.has_memory_total_bytes() ? Json(device.memory_total_bytes()) : Json());
    columns["power_watts"].push_back(device.has_power_watts() ? Json(device.power_watts()) : Json());
    columns["throttled_why"].push_back(EscapeControls(device.throttled_why()));
    columns["lease_share_why"].push_back(EscapeControls(member.lease_share_why()));
    columns["codec"].push_back(EscapeControls(progress.codec().empty() ? member.codec() : progress.codec()));
    columns["simulated"].push_back(member.simulated());
    columns["gone_why"].push_back(EscapeControls(member.gone_why()));
  }
  return absl::StrCat("{\"job\":", ToJson(job), ",\"workers\":", JsonText(columns),
                      ",\"last_push_ms\":", history.last_push_ms(), ",\"next_event\":", history.next_event(),
                      ",\"last_ms\":", history.job().last_ms(), "}");
}

std::string HistoryJson(const JobHistory& history) {
  std::string events;
  for (const HistoryEvent& event : history.events()) {
    absl::StrAppend(&events, events.empty() ? "" : ",", "{\"number\":", event.number(),
                    ",\"unix_ms\":", event.unix_ms(), ",\"kind\":", Quoted(event.kind()),
                    ",\"subject\":", Quoted(event.subject()), ",\"text\":", Quoted(event.text()), "}");
  }
  return absl::StrCat("{\"job\":", TrackJson(history.job()),
                      ",\"evaluations\":", TrackJson(history.evaluations()),
                      ",\"worker\":", history.workers_size() == 0 ? "null" : TrackJson(history.workers(0)),
                      ",\"events\":[", events, "]}");
}

}  // namespace recon
