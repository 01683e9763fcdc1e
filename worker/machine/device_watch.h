#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "worker/machine/device_monitor.h"

namespace recon {

// Looks at a device from time to time, on a thread of its own: a driver that hangs, or takes its time, holds
// up nobody who asks for the last look.
//
// Threads: thread-safe. The destructor waits for a look under way.
class DeviceWatch {
 public:
  static constexpr absl::Duration kInterval = absl::Seconds(1);
  // A look that is older tells nothing of now.
  static constexpr absl::Duration kLookAgeMax = absl::Seconds(10);

  // `make` runs on the watch's thread.
  explicit DeviceWatch(std::function<std::unique_ptr<DeviceMonitor>()> make,
                       absl::Duration interval = kInterval);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // The last look; none before the first, nor if it is too old at `now`.
  std::optional<DeviceStatus> Latest(absl::Time now) const;

 private:
  void Loop(const std::function<std::unique_ptr<DeviceMonitor>()>& make, absl::Duration interval);

  mutable Mutex mu_;
  std::optional<DeviceStatus> latest_ ABSL_GUARDED_BY(mu_);
  absl::Time looked_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool ending_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

// Of its memory, the share that is used; none if that is not known.
std::optional<double> MemoryUsed(const std::optional<DeviceStatus>& status);

}  // namespace recon
