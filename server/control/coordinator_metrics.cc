#include "server/control/coordinator_metrics.h"

namespace recon {

CoordinatorMetrics::CoordinatorMetrics(Metrics* metrics)
    : members_(metrics->Gauge("recon_server_members", "Workers alive")),
      samples_completed_(metrics->Gauge("recon_server_samples_completed", "Training samples completed")),
      accuracy_(metrics->Gauge("recon_server_test_accuracy", "Accuracy of the last evaluation")),
      standing_seconds_(metrics->Gauge("recon_server_standing_seconds",
                                       "For how long a job that has begun has not moved; 0 if it moves")),
      not_begun_seconds_(metrics->Gauge("recon_server_not_begun_seconds",
                                        "For how long a job that has not begun waits; 0 once it has")),
      log_bytes_(metrics->Gauge("recon_server_log_bytes", "What the push log takes on the disk")),
      log_budget_bytes_(metrics->Gauge("recon_server_log_budget_bytes", "What it may take")),
      departures_(metrics->Counter("recon_server_departures_total", "Workers that left or were evicted")),
      splits_without_push_(metrics->Counter(
          "recon_server_splits_without_push_total",
          "Training splits completed with nothing to push: empty files, or gradients that were not finite")),
      residuals_lost_(
          metrics->Counter("recon_server_residuals_lost_total",
                           "Workers that went, or were given up, with gradient values kept back")),
      auto_codec_rung_(
          metrics->Gauge("recon_server_auto_codec_rung",
                         "What --codec auto stands for: 0 fp32, the higher the more is left out")),
      diverged_(metrics->Gauge("recon_server_diverged",
                               "1 when training has diverged since the last rollback, or the start")) {}

void CoordinatorMetrics::Show(int workers_alive, uint64_t samples_completed, std::optional<double> accuracy,
                              size_t codec_rung) {
  members_.Set(workers_alive);
  samples_completed_.Set(static_cast<double>(samples_completed));
  if (accuracy) accuracy_.Set(*accuracy);
  auto_codec_rung_.Set(static_cast<double>(codec_rung));
}

void CoordinatorMetrics::ShowStanding(absl::Duration standing, absl::Duration not_begun, const LogUse& log) {
  standing_seconds_.Set(absl::ToDoubleSeconds(standing));
  not_begun_seconds_.Set(absl::ToDoubleSeconds(not_begun));
  log_bytes_.Set(static_cast<double>(log.disk_bytes));
  log_budget_bytes_.Set(static_cast<double>(log.budget_bytes));
}

}  // namespace recon
