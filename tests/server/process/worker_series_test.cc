#include "server/process/worker_series.h"

#include <map>

#include "catch2/catch.hpp"
#include "common/metrics/metrics.h"
#include "tests/server/history/simulated_status.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

std::map<std::string, prometheus::MetricFamily> ByName(
    const std::vector<prometheus::MetricFamily>& families) {
  std::map<std::string, prometheus::MetricFamily> named;
  for (const prometheus::MetricFamily& family : families) named[family.name] = family;
  return named;
}

}  // namespace

TEST_CASE("so many workers have series of their own, and the others are counted", "[metrics]") {
  SimulatedStatus job(300);
  job.Find("w3")->set_state(MEMBER_GONE);
  History history(1);
  for (int second = 1; second <= 3; ++second) history.Note(job.At(second), 1000 * second);
  auto families = ByName(SeriesOfWorkers(*job.At(3), history));
  CHECK(families["recon_server_worker_samples_per_second"].metric.size() == WorkerSeries::kWorkersMax);
  REQUIRE(families["recon_server_workers_without_series"].metric.size() == 1);
  CHECK(families["recon_server_workers_without_series"].metric[0].gauge.value == 43);
  for (const prometheus::ClientMetric& metric : families["recon_server_worker_computing_ratio"].metric) {
    CHECK(metric.label[0].value != "w3");
    CHECK(metric.gauge.value == Approx(0.6));
  }
}

TEST_CASE("a long name is a short label, and what is not known has no series", "[metrics]") {
  SimulatedStatus job(0);
  job.Join(std::string(5000, 'n'), 1);
  History history(1);
  const auto status = std::make_shared<StatusReply>(job.edit());
  history.Note(status, 1000);
  auto families = ByName(SeriesOfWorkers(*status, history));
  REQUIRE(families["recon_server_worker_samples_per_second"].metric.size() == 1);
  CHECK(families["recon_server_worker_samples_per_second"].metric[0].label[0].value.size() ==
        WorkerSeries::kLabelBytesMax);
  CHECK(families["recon_server_worker_loss"].metric.empty());
  CHECK(families["recon_server_worker_push_seconds"].metric.empty());
}

TEST_CASE("what a worker's device is known to do is a series, and what is not is none", "[metrics]") {
  SimulatedStatus job(2);
  DeviceStatus* device = job.Find("w1")->mutable_progress()->mutable_device_status();
  device->set_utilization(0.75);
  device->set_memory_used_bytes(3'000'000'000);
  device->set_throttled(false);
  History history(1);
  const auto status = job.At(1);
  history.Note(status, 1000);
  auto families = ByName(SeriesOfWorkers(*status, history));
  const auto only = [&](const std::string& name) {
    const auto& metrics = families["recon_server_worker_device_" + name].metric;
    REQUIRE(metrics.size() == 1);
    CHECK(metrics[0].label[0].value == "w1");
    return metrics[0].gauge.value;
  };
  CHECK(only("utilization_ratio") == 0.75);
  CHECK(only("memory_used_bytes") == 3e9);
  CHECK(only("throttled") == 0);
  for (const char* name : {"own_utilization_ratio", "memory_bytes", "power_watts"}) {
    CHECK(families[std::string("recon_server_worker_device_") + name].metric.empty());
  }
}

TEST_CASE("there are no series before the first status and after the end", "[metrics]") {
  const TempDir directory;
  HistoryKeeper keeper(directory.path(), 1, FileSystem::Local());
  WorkerSeries series(&keeper);
  CHECK(series.Collect().empty());
  SimulatedStatus job(1);
  keeper.Note(*job.At(1), absl::UnixEpoch(), absl::UnixEpoch());
  CHECK_FALSE(series.Collect().empty());
  series.Close();
  CHECK(series.Collect().empty());
}

}  // namespace recon
