#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/metrics/metrics.h"
#include "server/control/ports.h"

namespace recon {

// What Prometheus is shown of the control plane: names, help texts and units in one place. Threads: as
// prometheus-cpp's metrics.
class CoordinatorMetrics {
 public:
  // `metrics` outlives it.
  explicit CoordinatorMetrics(Metrics* metrics);

  // Each tick. `accuracy`: of the last evaluation, if there was one. `codec_rung`: CodecTuner::rung_number().
  void Show(int workers_alive, uint64_t samples_completed, std::optional<double> accuracy, size_t codec_rung);
  void ShowStanding(absl::Duration standing, absl::Duration not_begun, const LogUse& log);
  void NoteDeparture() { departures_.Increment(); }
  void NoteSplitWithoutPush() { splits_without_push_.Increment(); }
  void NoteResidualLost() { residuals_lost_.Increment(); }
  void NoteDiverged() { diverged_.Set(1); }

 private:
  prometheus::Gauge& members_;
  prometheus::Gauge& samples_completed_;
  prometheus::Gauge& accuracy_;
  prometheus::Gauge& standing_seconds_;
  prometheus::Gauge& not_begun_seconds_;
  prometheus::Gauge& log_bytes_;
  prometheus::Gauge& log_budget_bytes_;
  prometheus::Counter& departures_;
  prometheus::Counter& splits_without_push_;
  prometheus::Counter& residuals_lost_;
  prometheus::Gauge& auto_codec_rung_;
  prometheus::Gauge& diverged_;
};

}  // namespace recon
