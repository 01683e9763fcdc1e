#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "proto/control.pb.h"

namespace recon {

// Looks how a device is: how busy, how full, how hot.
//
// Threads: one at a time. A look may take as long as a driver takes to answer: not on a thread that others
// wait for.
class DeviceMonitor {
 public:
  virtual ~DeviceMonitor() = default;

  // At `now`, which never goes back. What cannot be read, or makes no sense, is absent, never 0. Shares of
  // time are those since the look before, so that the first may lack them.
  virtual DeviceStatus Read(absl::Time now) = 0;
};

// That of a device as GradientSpace::device() names it: a GPU's for "cuda:N", by NVML; else the machine's. A
// device that cannot be looked at has a status with nothing but its problem.
std::unique_ptr<DeviceMonitor> MakeDeviceMonitor(const std::string& device);

}  // namespace recon
