#include "server/process/worker_series.h"

#include <cmath>
#include <memory>

#include "common/base/clipped_text.h"

namespace recon {
namespace {

struct Series {
  const char* name;
  const char* help;
  double (*value)(const MemberStatus&, const WorkerRates&);
};

constexpr Series kSeries[] = {
    {"recon_server_worker_samples_per_second", "Samples that the worker computes a second",
     [](const MemberStatus& member, const WorkerRates&) { return member.progress().samples_per_second(); }},
    {"recon_server_worker_loss", "Loss of its last batch",
     [](const MemberStatus& member, const WorkerRates&) {
       return member.progress().batches() == 0 ? NAN : member.progress().last_loss();
     }},
    {"recon_server_worker_staleness_updates", "Mean staleness of its pushes",
     [](const MemberStatus& member, const WorkerRates&) { return member.staleness_mean(); }},
    {"recon_server_worker_pushed_bytes_per_second", "Payloads of its pushes",
     [](const MemberStatus&, const WorkerRates& rates) { return double{rates.push_bytes_per_second}; }},
    {"recon_server_worker_push_seconds", "From sending a push to its reply",
     [](const MemberStatus&, const WorkerRates& rates) { return double{rates.push_latency_ms} / 1000; }},
    {"recon_server_worker_computing_ratio", "Share of its steps that it computes",
     [](const MemberStatus&, const WorkerRates& rates) { return double{rates.computing}; }},
    {"recon_server_worker_link_ratio", "Share of its steps that it waits for its own pushes",
     [](const MemberStatus&, const WorkerRates& rates) { return double{rates.link}; }},
    {"recon_server_worker_waiting_ratio", "Share of its steps that it waits for other workers",
     [](const MemberStatus&, const WorkerRates& rates) { return double{rates.waiting}; }},
    {"recon_server_worker_device_utilization_ratio",
     "Share of the time in which its device computes, for anybody",
     [](const MemberStatus& member, const WorkerRates&) {
       const DeviceStatus& device = member.progress().device_status();
       return device.has_utilization() ? device.utilization() : NAN;
     }},
    {"recon_server_worker_device_own_utilization_ratio", "Likewise, for this worker's process",
     [](const MemberStatus& member, const WorkerRates&) {
       const DeviceStatus& device = member.progress().device_status();
       return device.has_own_utilization() ? device.own_utilization() : NAN;
     }},
    {"recon_server_worker_device_memory_used_bytes", "Memory of its device in use, by anybody",
     [](const MemberStatus& member, const WorkerRates&) {
       const DeviceStatus& device = member.progress().device_status();
       return device.has_memory_used_bytes() ? static_cast<double>(device.memory_used_bytes()) : NAN;
     }},
    {"recon_server_worker_device_memory_bytes", "Memory of its device",
     [](const MemberStatus& member, const WorkerRates&) {
       const DeviceStatus& device = member.progress().device_status();
       return device.has_memory_total_bytes() ? static_cast<double>(device.memory_total_bytes()) : NAN;
     }},
    {"recon_server_worker_device_power_watts", "Power that its device takes",
     [](const MemberStatus& member, const WorkerRates&) {
       const DeviceStatus& device = member.progress().device_status();
       return device.has_power_watts() ? device.power_watts() : NAN;
     }},
    {"recon_server_worker_device_throttled", "1 while its device's clock is held down",
     [](const MemberStatus& member, const WorkerRates&) {
       const DeviceStatus& device = member.progress().device_status();
       return device.has_throttled() ? static_cast<double>(device.throttled()) : NAN;
     }},
    {"recon_server_worker_silent_seconds", "Since it was heard of",
     [](const MemberStatus& member, const WorkerRates&) { return member.heartbeat_age_ms() / 1000; }},
};

prometheus::MetricFamily Family(const char* name, const char* help) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = prometheus::MetricType::Gauge;
  return family;
}

}  // namespace

std::vector<prometheus::MetricFamily> SeriesOfWorkers(const StatusReply& status, const History& history) {
  std::vector<prometheus::MetricFamily> families;
  for (const Series& series : kSeries) families.push_back(Family(series.name, series.help));
  const WorkerRates unknown;
  size_t workers = 0, others = 0;
  for (const MemberStatus& member : status.members()) {
    if (member.state() == MEMBER_GONE) continue;
    if (workers == WorkerSeries::kWorkersMax) {
      ++others;
      continue;
    }
    ++workers;
    const WorkerRates* found = history.RatesOf(member.name());
    for (size_t i = 0; i < families.size(); ++i) {
      const double value = kSeries[i].value(member, found == nullptr ? unknown : *found);
      if (!std::isfinite(value)) continue;
      prometheus::ClientMetric& metric = families[i].metric.emplace_back();
      metric.label.push_back({"worker", ClippedText(member.name(), WorkerSeries::kLabelBytesMax)});
      metric.gauge.value = value;
    }
  }
  families.push_back(
      Family("recon_server_workers_without_series", "Workers beyond those that have series of their own"));
  families.back().metric.emplace_back().gauge.value = static_cast<double>(others);
  return families;
}

std::vector<prometheus::MetricFamily> WorkerSeries::Collect() const {
  MutexLock lock(&mu_);
  const std::shared_ptr<const StatusReply> status = history_ == nullptr ? nullptr : history_->status();
  if (status == nullptr) return {};
  std::vector<prometheus::MetricFamily> families;
  history_->Read([&](const History& history) { families = SeriesOfWorkers(*status, history); });
  return families;
}

void WorkerSeries::Close() {
  MutexLock lock(&mu_);
  history_ = nullptr;
}

}  // namespace recon
