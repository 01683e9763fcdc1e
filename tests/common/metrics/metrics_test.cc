#include "common/metrics/metrics.h"

#include "absl/strings/match.h"
#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("metrics show in Prometheus' text format", "[metrics]") {
  Metrics metrics;
  metrics.Counter("recon_test_things_total", "Things").Increment(3);
  metrics.Gauge("recon_test_level", "Level", {{"shard", "1"}}).Set(2.5);
  metrics.Histogram("recon_test_seconds", "Time", {1, 2}).Observe(1.5);
  const std::string text = metrics.Text();
  CHECK(absl::StrContains(text, "recon_test_things_total 3"));
  CHECK(absl::StrContains(text, "recon_test_level{shard=\"1\"} 2.5"));
  CHECK(absl::StrContains(text, "recon_test_seconds_bucket{le=\"2\"} 1"));
}

}  // namespace recon
