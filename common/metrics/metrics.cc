#include "common/metrics/metrics.h"

#include <algorithm>
#include <exception>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "prometheus/collectable.h"
#include "prometheus/exposer.h"
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

absl::Status Metrics::Serve(const std::string& address) {
  // The library's words for all addresses of both families, and for those of IPv4 where there are no others.
  const std::string port = address.substr(address.rfind(':') + 1);
  std::vector<std::string> ways = {address};
  if (IsWildcard(address)) ways = {"+" + port, port};
  std::string failure;
  for (const std::string& way : ways) {
    try {  // The library's only way to report a port that is taken.
      exposer_ = std::make_unique<prometheus::Exposer>(way, /*num_threads=*/1);
      break;
    } catch (const std::exception& error) {
      failure = error.what();
    }
  }
  if (exposer_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("--metrics-address ", address, ": ", failure));
  }
  exposer_->RegisterCollectable(registry_);
  for (const std::weak_ptr<prometheus::Collectable>& source : sources_) exposer_->RegisterCollectable(source);
  return absl::OkStatus();
}

std::string Metrics::Text() const { return prometheus::TextSerializer().Serialize(registry_->Collect()); }

}  // namespace recon
