#include "worker/machine/device_watch.h"

#include <utility>

#include "common/base/clock.h"
#include "common/base/log.h"

namespace recon {

DeviceWatch::DeviceWatch(std::function<std::unique_ptr<DeviceMonitor>()> make, absl::Duration interval) {
  thread_ = std::thread([this, make = std::move(make), interval] { Loop(make, interval); });
}

DeviceWatch::~DeviceWatch() {
  {
    MutexLock lock(&mu_);
    ending_ = true;
  }
  thread_.join();
}

void DeviceWatch::Loop(const std::function<std::unique_ptr<DeviceMonitor>()>& make, absl::Duration interval) {
  const std::unique_ptr<DeviceMonitor> monitor = make();
  std::string said;
  while (true) {
    const absl::Time now = Now();
    DeviceStatus status = monitor->Read(now);
    if (status.problem() != said) {
      said = status.problem();
      if (!said.empty()) LogInfo("nothing is known of how busy the device is: {}", said);
    }
    MutexLock lock(&mu_);
    latest_ = std::move(status);
    looked_ = now;
    if (mu_.AwaitFor(interval, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ending_; })) return;
  }
}

std::optional<DeviceStatus> DeviceWatch::Latest(absl::Time now) const {
  MutexLock lock(&mu_);
  return now - looked_ > kLookAgeMax ? std::nullopt : latest_;
}

std::optional<double> MemoryUsed(const std::optional<DeviceStatus>& status) {
  if (!status || !status->has_memory_used_bytes() || status->memory_total_bytes() == 0) return std::nullopt;
  return static_cast<double>(status->memory_used_bytes()) / static_cast<double>(status->memory_total_bytes());
}

}  // namespace recon
