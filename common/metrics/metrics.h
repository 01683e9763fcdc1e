#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"

namespace prometheus {
class Collectable;
class Registry;
}  // namespace prometheus

namespace recon {

// Where metrics are to be served, as `flag` says: `text` is HOST:PORT, or a port alone, which stands for
// loopback. Metrics are plain text for everybody who can connect: InvalidArgument for another host than
// loopback, unless the process has been told how to be on a network (`on_network`: TLS or --insecure).
absl::StatusOr<std::string> MetricsAddress(const std::string& flag, const std::string& text, bool on_network);

// The metrics of one process, in Prometheus' text format.
//
// Threads: all methods but Add(), which comes first, are thread-safe; the returned objects too, and they live
// as long as this one. Names follow Prometheus' rules: recon_<part>_<what>_<unit>, counters end
// in _total.
class Metrics {
 public:
  using Labels = std::map<std::string, std::string>;

  Metrics();
  ~Metrics();

  prometheus::Counter& Counter(const std::string& name, const std::string& help, const Labels& labels = {});
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  // `buckets` are upper bounds in the metric's unit.
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help,
                                   const std::vector<double>& buckets, const Labels& labels = {});

  // Series that `source` makes when somebody scrapes, for as long as it lives.
  void Add(const std::shared_ptr<prometheus::Collectable>& source);

  // What a scrape returns. Values of labels are escaped (EscapeControls()).
  std::string Text() const;

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  std::vector<std::weak_ptr<prometheus::Collectable>> sources_;
};

}  // namespace recon
