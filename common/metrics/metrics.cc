#include "common/metrics/metrics.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/plain_text.h"
#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace recon {

absl::StatusOr<std::string> MetricsAddress(const std::string& flag, const std::string& text,
                                           bool on_network) {
  const bool port_alone =
      !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  const std::string address = port_alone && text.size() <= 5 ? LoopbackAddress(std::stoi(text)) : text;
  if (!CheckAddress(flag, address).ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " ", text, ": expected HOST:PORT, or PORT alone for this machine only"));
  }
  if (IsLoopback(address) || on_network) return address;
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " ", text,
                   " is not loopback: everybody who reaches it can read the metrics. Give --tls-cert, "
                   "--tls-key and --tls-ca, or --insecure"));
}

Metrics::Metrics() : registry_(std::make_shared<prometheus::Registry>()) {}
Metrics::~Metrics() = default;

prometheus::Counter& Metrics::Counter(const std::string& name, const std::string& help,
                                      const Labels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(*registry_).Add(labels);
}

prometheus::Gauge& Metrics::Gauge(const std::string& name, const std::string& help, const Labels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(*registry_).Add(labels);
}

prometheus::Histogram& Metrics::Histogram(const std::string& name, const std::string& help,
                                          const std::vector<double>& buckets, const Labels& labels) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(*registry_).Add(labels, buckets);
}

void Metrics::Add(const std::shared_ptr<prometheus::Collectable>& source) { sources_.push_back(source); }

std::string Metrics::Text() const {
  std::vector<prometheus::MetricFamily> families = registry_->Collect();
  for (const std::weak_ptr<prometheus::Collectable>& source : sources_) {
    const std::shared_ptr<prometheus::Collectable> alive = source.lock();
    if (alive == nullptr) continue;
    std::vector<prometheus::MetricFamily> more = alive->Collect();
    std::move(more.begin(), more.end(), std::back_inserter(families));
  }
  for (prometheus::MetricFamily& family : families) {
    for (prometheus::ClientMetric& metric : family.metric) {
      for (prometheus::ClientMetric::Label& label : metric.label) label.value = EscapeControls(label.value);
    }
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace recon
