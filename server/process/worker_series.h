#pragma once

#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/history/history_keeper.h"

namespace recon {

// Prometheus' series of each worker that is there, with its name as the label "worker": made when somebody
// scrapes, from the last status, so that they end with their worker. So many workers at most: those with the
// lowest numbers; how many others there are is a series, too. Names are clipped.
//
// Threads: thread-safe; Collect() runs on the threads of those who scrape.
class WorkerSeries : public prometheus::Collectable {
 public:
  // Each has 15 series; Prometheus keeps all there ever were for as long as it keeps data.
  static constexpr size_t kWorkersMax = 256;
  static constexpr size_t kLabelBytesMax = 256;

  // `history` must live until Close().
  explicit WorkerSeries(HistoryKeeper* history) : history_(history) {}

  std::vector<prometheus::MetricFamily> Collect() const override;
  // No series from now on. Waits for whoever scrapes.
  void Close();

 private:
  mutable Mutex mu_;
  HistoryKeeper* history_ ABSL_GUARDED_BY(mu_);
};

// What Collect() makes of a status. Pure.
std::vector<prometheus::MetricFamily> SeriesOfWorkers(const StatusReply& status, const History& history);

}  // namespace recon
