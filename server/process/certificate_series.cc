#include "server/process/certificate_series.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/rpc/pem_file.h"
#include "common/rpc/x509.h"

namespace recon {
namespace {

// Until the first of a file's certificates expires.
std::optional<double> DaysLeft(const std::string& path) {
  const absl::StatusOr<std::string> pem = ReadPemFile("certificate", path);
  if (!pem.ok()) return std::nullopt;
  const auto certificates = ReadCertificates(*pem);
  if (!certificates.ok()) return std::nullopt;
  absl::Time first = absl::InfiniteFuture();
  for (const auto& certificate : *certificates) first = std::min(first, ExpiryOf(certificate.get()));
  return absl::ToDoubleHours(first - WallNow()) / 24;
}

}  // namespace

std::vector<prometheus::MetricFamily> CertificateSeries::Collect() const {
  prometheus::MetricFamily family;
  family.name = "recon_server_certificate_valid_days";
  family.help = "Days until the certificate expires";
  family.type = prometheus::MetricType::Gauge;
  for (const auto& [file, path] : {std::pair("cert", &certificate_), std::pair("ca", &ca_)}) {
    const std::optional<double> days = DaysLeft(*path);
    if (!days) continue;
    prometheus::ClientMetric metric;
    metric.label = {{"file", file}};
    metric.gauge.value = *days;
    family.metric.push_back(std::move(metric));
  }
  return {family};
}

}  // namespace recon
