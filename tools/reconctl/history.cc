#include <algorithm>
#include <cmath>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/human_bytes.h"
#include "common/base/plain_text.h"
#include "common/base/status_macros.h"
#include "common/json/message_json.h"
#include "common/storage/file_system.h"
#include "server/history/event_file.h"
#include "tools/reconctl/history_source.h"
#include "tools/reconctl/render.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

constexpr int kRowsShown = 24;
constexpr int kEventsShown = 30;

std::string Number(const HistorySeries* series, int i) {
  if (series == nullptr || !std::isfinite(series->mean(i))) return "-";
  return absl::StrFormat("%.4g", series->mean(i));
}

std::string Bytes(const HistorySeries* series, int i) {
  if (series == nullptr || !std::isfinite(series->mean(i))) return "-";
  return absl::StrCat(HumanBytes(static_cast<uint64_t>(series->mean(i))), "/s");
}

std::string Percent(const HistorySeries* series, int i) {
  if (series == nullptr || !std::isfinite(series->mean(i))) return "-";
  return absl::StrFormat("%.0f", 100 * series->mean(i));
}

// Rows evenly over the time there is, the last point among them.
void PrintPoints(const HistoryTrack& track) {
  std::vector<std::vector<std::string>> rows = {{"TIME", "LOSS", "SAMPLES/S", "STALENESS", "PUSHED", "PULLED",
                                                 "LATENCY MS", "COMPUTES %", "LINK %", "WAITS %"}};
  const auto of = [&](const char* name) { return FindSeries(track, name); };
  const int points = track.end_ms_size();
  int64_t due_ms = 0;
  for (int i = 0; i < points; ++i) {
    if (track.end_ms(i) < due_ms && i + 1 < points) continue;
    due_ms = track.end_ms(i) + (track.end_ms(points - 1) - track.begin_ms(0)) / kRowsShown;
    rows.push_back({HumanTime(track.end_ms(i)), Number(of("loss"), i), Number(of("samples_per_second"), i),
                    Number(of("staleness"), i), Bytes(of("push_bytes_per_second"), i),
                    Bytes(of("pull_bytes_per_second"), i), Number(of("push_latency_ms"), i),
                    Percent(of("computing"), i), Percent(of("link"), i), Percent(of("waiting"), i)});
  }
  std::cout << Table(rows);
  const int shown = static_cast<int>(rows.size()) - 1;
  if (shown < points) std::cout << "(" << shown << " of " << points << " points; --csv has all)\n";
}

void PrintHistory(const JobHistory& history, const HistoryTrack& track) {
  std::cout << "job        " << (history.model().empty() ? "no model yet" : EscapeControls(history.model()))
            << absl::StrFormat(", %x", history.job_id()) << "\n";
  if (!track.name().empty()) std::cout << "worker     " << EscapeControls(track.name()) << "\n";
  const HistoryTrack& evaluations = history.evaluations();
  if (evaluations.end_ms_size() > 0) {
    std::cout << absl::StrFormat("accuracy   %.4f, loss %.4f after data epoch %d\n",
                                 LastOf(evaluations, "accuracy"), LastOf(evaluations, "loss"),
                                 history.evaluated_epochs());
  }
  std::cout << "\n";
  PrintPoints(track);
  std::cout << "\n";
  std::vector<std::vector<std::string>> rows = {{"TIME", "WHAT", "WHO", "WHY"}};
  for (int i = std::max(0, history.events_size() - kEventsShown); i < history.events_size(); ++i) {
    const HistoryEvent& event = history.events(i);
    rows.push_back({HumanTime(event.unix_ms()), event.kind(), event.subject(), event.text()});
  }
  std::cout << Table(rows);
  if (history.events_size() > kEventsShown)
    std::cout << "(the last " << kEventsShown << " of " << history.events_size()
              << " events; --json has all)\n";
}

// A line for each point, and for each evaluation.
void PrintCsv(const JobHistory& history, const HistoryTrack& track) {
  std::cout << "kind,begin_ms,end_ms,samples";
  for (const HistorySeries& series : track.series()) {
    const std::string name = EscapeControls(series.name());
    std::cout << "," << name << "," << name << "_min," << name << "_max";
  }
  std::cout << ",accuracy,evaluation_loss\n";
  const auto cell = [](float value) { return std::isfinite(value) ? absl::StrCat(value) : std::string(); };
  for (int i = 0; i < track.end_ms_size(); ++i) {
    std::cout << "point," << track.begin_ms(i) << "," << track.end_ms(i) << "," << track.samples(i);
    for (const HistorySeries& series : track.series())
      std::cout << "," << cell(series.mean(i)) << "," << cell(series.min(i)) << "," << cell(series.max(i));
    std::cout << ",,\n";
  }
  const HistoryTrack& evaluations = history.evaluations();
  for (int i = 0; i < evaluations.end_ms_size(); ++i) {
    std::cout << "evaluation," << evaluations.begin_ms(i) << "," << evaluations.end_ms(i) << ","
              << evaluations.samples(i) << std::string(static_cast<size_t>(3 * track.series_size()), ',')
              << "," << cell(FindSeries(evaluations, "accuracy")->mean(i)) << ","
              << cell(FindSeries(evaluations, "loss")->mean(i)) << "\n";
  }
}

}  // namespace

absl::Status ShowHistory(const HistoryTarget& target) {
  const std::string source = target.source.empty() ? target.server.address : target.source;
  RECON_ASSIGN_OR_RETURN(const JobHistory history, LoadHistory(source, target.server, target.worker));
  const HistoryTrack* track = &history.job();
  for (const HistoryTrack& worker : history.workers()) {
    if (!target.worker.empty() && worker.name() == target.worker) track = &worker;
  }
  if (!target.tensorboard.empty()) {
    const int64_t begin_ms = track->begin_ms_size() == 0 ? 0 : track->begin_ms(0);
    RECON_ASSIGN_OR_RETURN(const auto file,
                           EventFile::Create(FileSystem::Local(), target.tensorboard, begin_ms, "recon"));
    RECON_RETURN_IF_ERROR(file->Add(history, target.worker.empty() ? nullptr : track));
    std::cout << track->end_ms_size() << " points written to " << target.tensorboard << "\n";
    return absl::OkStatus();
  }
  if (target.server.json) {
    std::cout << ToJson(history) << "\n";
  } else if (target.csv) {
    PrintCsv(history, *track);
  } else {
    PrintHistory(history, *track);
  }
  return absl::OkStatus();
}

}  // namespace recon
