#pragma once

#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace recon {

// Prometheus' series of how long this server's certificate and the CA it trusts are valid still, in days:
// what is in the files when somebody scrapes. None for a file that cannot be read then.
//
// Threads: thread-safe.
class CertificateSeries : public prometheus::Collectable {
 public:
  CertificateSeries(std::string certificate, std::string ca)
      : certificate_(std::move(certificate)), ca_(std::move(ca)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::string certificate_, ca_;
};

}  // namespace recon
