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

TEST_CASE("a label's value that is not plain is escaped", "[metrics]") {
  Metrics metrics;
  metrics.Gauge("recon_test_level", "Level", {{"worker", "w\x1b[31m\xe2\x80\xae\xff\xc3\xa9"}}).Set(1);
  CHECK(absl::StrContains(metrics.Text(), "{worker=\"w\\\\x1b[31m\\\\u202e\\\\xff\xc3\xa9\"} 1"));
}

}  // namespace recon
