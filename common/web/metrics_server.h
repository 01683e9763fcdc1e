#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"
#include "common/web/http_server.h"

namespace recon {

// Serves http://`address`/metrics, for example "127.0.0.1:9464", from now on until what is returned is
// destroyed. `metrics` outlives that; Metrics::Add() comes before. Errors as HttpServer::Start() has them,
// which name --metrics-address.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(const std::string& address, const Metrics* metrics);

}  // namespace recon
