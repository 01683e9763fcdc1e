#include "server/history/event_stream.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr int64_t kSecondMs = 1000;
// Points that come each second come a little earlier at times.
constexpr int64_t kEarlyMs = 50;
constexpr int64_t kIntervalMaxMs = int64_t{1} << 40;

// The points of a track as one.
HistoryTrack Mean(const HistoryTrack& track) {
  HistoryTrack mean;
  const int points = track.end_ms_size();
  if (points == 0) return mean;
  mean.add_begin_ms(track.begin_ms(0));
  mean.add_end_ms(track.end_ms(points - 1));
  for (const HistorySeries& series : track.series()) {
    double sum = 0, samples = 0;
    for (int i = 0; i < points; ++i) {
      if (!std::isfinite(series.mean(i))) continue;
      sum += double{series.mean(i)} * track.samples(i);
      samples += track.samples(i);
    }
    HistorySeries* out = mean.add_series();
    out->set_name(series.name());
    out->add_mean(samples > 0 ? static_cast<float>(sum / samples) : NAN);
  }
  return mean;
}

}  // namespace

int64_t EventStream::IntervalMs(int64_t age_ms) {
  int64_t interval = kSecondMs;
  for (int64_t end = kPointsOfInterval * interval; age_ms >= end && interval < kIntervalMaxMs;
       end += kPointsOfInterval * interval) {
    interval *= 2;
  }
  return interval;
}

EventStream::EventStream(FileSystem* files, std::string directory, const History& history)
    : files_(files),
      directory_(std::move(directory)),
      asked_at_ms_(std::max(history.job().last_ms(), history.evaluations().last_ms())),
      job_until_ms_(history.job().last_ms()),
      evaluations_until_ms_(history.evaluations().last_ms()) {}

JobHistory EventStream::Take(const History& history, int64_t now_ms, bool all) {
  if (now_ms < asked_at_ms_) {  // What came before has been moved to before the present.
    job_until_ms_ = std::min(job_until_ms_, now_ms - 1);
    evaluations_until_ms_ = std::min(evaluations_until_ms_, now_ms - 1);
  }
  asked_at_ms_ = now_ms;
  JobHistory piece;
  *piece.mutable_evaluations() = history.evaluations().Encode("", evaluations_until_ms_);
  evaluations_until_ms_ = history.evaluations().last_ms();
  const int64_t interval = IntervalMs(now_ms - history.job().first_ms());
  const bool early = now_ms >= taken_at_ms_ && now_ms - taken_at_ms_ < interval - kEarlyMs;
  if (early && !all) return piece;
  taken_at_ms_ = now_ms;
  *piece.mutable_job() = Mean(history.job().Encode("", job_until_ms_));
  job_until_ms_ = history.job().last_ms();
  return piece;
}

absl::Status EventStream::Write(const JobHistory& piece) {
  if (piece.job().end_ms_size() + piece.evaluations().end_ms_size() == 0) return absl::OkStatus();
  if (file_ == nullptr) {
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    RECON_ASSIGN_OR_RETURN(file_, EventFile::Create(files_, directory_, taken_at_ms_, host));
  }
  return file_->Add(piece, nullptr);
}

}  // namespace recon
