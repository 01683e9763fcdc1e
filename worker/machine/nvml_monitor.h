#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/machine/device_monitor.h"

namespace recon {

// A GPU as NVIDIA's management library says: utilisation, memory, power, and why its clock is held down. The
// library is the driver's: it is loaded at run time, and neither it nor its header is needed to build.
//
// Whose work a GPU does is known by process numbers. In a container with process numbers of its own NVML may
// have others: then `own_utilization` is absent.
class NvmlMonitor : public DeviceMonitor {
 public:
  struct Libraries {
    std::string nvml = "libnvidia-ml.so.1";
    // CUDA's driver tells which GPU is number N of this process (CUDA_VISIBLE_DEVICES and the like).
    std::string cuda = "libcuda.so.1";
  };

  // NotFound if a library is not there; FailedPrecondition if it lacks a function that is needed, which it
  // names; Unavailable, in NVML's words, if the driver does not answer, or is of another version.
  static absl::StatusOr<std::unique_ptr<NvmlMonitor>> Open(const Libraries& libraries, int cuda_device);
  ~NvmlMonitor() override;
  NvmlMonitor(const NvmlMonitor&) = delete;
  NvmlMonitor& operator=(const NvmlMonitor&) = delete;

  DeviceStatus Read(absl::Time now) override;

 private:
  struct Functions;

  NvmlMonitor();
  absl::Status Load(const std::string& library);
  absl::Status FindDevice(const std::string& cuda_library, int cuda_device);
  void ReadOwnUtilization(DeviceStatus* status);

  // Set by Open().
  std::unique_ptr<Functions> nvml_;
  void* device_ = nullptr;
  std::string name_;
  const pid_t process_;

  bool begun_ = false;                 // NVML was initialized, and is to be shut down.
  bool process_seen_ = false;          // NVML knows this process by its number.
  unsigned long long seen_until_ = 0;  // The last sample of processes, in microseconds.
};

}  // namespace recon
