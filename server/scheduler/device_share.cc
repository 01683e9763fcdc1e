#include "server/scheduler/device_share.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/limits.h"

namespace recon {
namespace {

// Servers, other workers' moments and the kernel take some of a machine's time without being a load.
constexpr double kOthersIgnored = 0.25;
constexpr double kMemoryFull = 0.95;
constexpr char kProcessor[] = "cpu";
constexpr double kShareMin = 0.125;
// Above what there is, by far; sums of many workers stay finite.
constexpr double kWattsMax = 1e6;
constexpr uint64_t kMemoryBytesMax = uint64_t{1} << 60;

}  // namespace

absl::Status CheckDeviceStatus(const DeviceStatus& device) {
  for (const double share : {device.utilization(), device.own_utilization()}) {
    if (!(share >= 0 && share <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a device's utilization is ", share, ", expected 0 to 1"));
    }
  }
  for (const double watts : {device.power_watts(), device.power_limit_watts()}) {
    if (!(watts >= 0 && watts <= kWattsMax)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a device's power is ", watts, " W, allowed are ", kWattsMax));
    }
  }
  if (device.memory_total_bytes() > kMemoryBytesMax || device.memory_used_bytes() > kMemoryBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a device's memory is ", device.memory_used_bytes(),
                                                   " of ", device.memory_total_bytes(),
                                                   " bytes, allowed are ", kMemoryBytesMax));
  }
  for (const std::string* text :
       {&device.name(), &device.source(), &device.throttled_why(), &device.problem()}) {
    if (text->size() > limits::kProgressTextBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a text of ", text->size(), " bytes about a device, allowed are ", limits::kProgressTextBytesMax));
    }
  }
  return absl::OkStatus();
}

LeaseShare LeaseShareOf(const DeviceStatus& device) {
  LeaseShare lease;
  if (device.name() != kProcessor && device.has_utilization() && device.has_own_utilization()) {
    const double others = device.utilization() - device.own_utilization();
    if (others > kOthersIgnored) {
      lease.share = 1 - others;
      lease.why = absl::StrFormat("others use %.0f %% of its device", 100 * others);
    }
  }
  if (device.has_memory_used_bytes() && device.memory_total_bytes() > 0) {
    const double used =
        static_cast<double>(device.memory_used_bytes()) / static_cast<double>(device.memory_total_bytes());
    if (used > kMemoryFull) {
      lease.share /= 2;
      absl::StrAppend(&lease.why, lease.why.empty() ? "" : ", ",
                      absl::StrFormat("%.0f %% of its device's memory is in use", 100 * std::min(used, 1.0)));
    }
  }
  lease.share = std::clamp(lease.share, kShareMin, 1.0);
  return lease;
}

}  // namespace recon
