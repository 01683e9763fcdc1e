#include "worker/machine/device_monitor.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "worker/machine/machine_monitor.h"
#include "worker/machine/nvml_monitor.h"

namespace recon {
namespace {

// Of a device that nothing can be known of.
class NoMonitor : public DeviceMonitor {
 public:
  explicit NoMonitor(std::string problem) : problem_(std::move(problem)) {}

  DeviceStatus Read(absl::Time) override {
    DeviceStatus status;
    status.set_problem(problem_);
    return status;
  }

 private:
  const std::string problem_;
};

}  // namespace

std::unique_ptr<DeviceMonitor> MakeDeviceMonitor(const std::string& device) {
  absl::string_view number = device;
  if (!absl::ConsumePrefix(&number, "cuda:")) return std::make_unique<MachineMonitor>();
  int ordinal = 0;
  if (!absl::SimpleAtoi(number, &ordinal) || ordinal < 0) {
    return std::make_unique<NoMonitor>(absl::StrCat("no CUDA device is named ", device));
  }
  absl::StatusOr<std::unique_ptr<NvmlMonitor>> nvml = NvmlMonitor::Open({}, ordinal);
  if (!nvml.ok()) return std::make_unique<NoMonitor>(std::string(nvml.status().message()));
  return *std::move(nvml);
}

}  // namespace recon
