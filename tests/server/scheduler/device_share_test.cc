#include "server/scheduler/device_share.h"

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "server/scheduler/lease_size.h"

namespace recon {
namespace {

DeviceStatus Busy(double utilization, double own) {
  DeviceStatus device;
  device.set_name("NVIDIA H200");
  device.set_utilization(utilization);
  device.set_own_utilization(own);
  return device;
}

DeviceStatus Full(uint64_t used, uint64_t total) {
  DeviceStatus device;
  device.set_memory_used_bytes(used);
  device.set_memory_total_bytes(total);
  return device;
}

}  // namespace

TEST_CASE("a worker whose device works for others, or is full, gets less of a lease, and why",
          "[scheduler]") {
  const LeaseShare all = LeaseShareOf(Busy(1, 0.9));
  CHECK(all.share == 1);
  CHECK(all.why.empty());
  const LeaseShare busy = LeaseShareOf(Busy(0.9, 0.3));
  CHECK(busy.share == Approx(0.4));
  CHECK(busy.why == "others use 60 % of its device");
  const LeaseShare full = LeaseShareOf(Full(96, 100));
  CHECK(full.share == 0.5);
  CHECK(full.why == "96 % of its device's memory is in use");
  CHECK(LeaseShareOf(Full(95, 100)).share == 1);

  // Workers of one machine are others to each other.
  DeviceStatus processor = Busy(1, 0.1);
  processor.set_name("cpu");
  CHECK(LeaseShareOf(processor).share == 1);

  DeviceStatus both = Busy(0.5, 0);
  both.MergeFrom(Full(100, 100));
  CHECK(LeaseShareOf(both).share == 0.25);
  CHECK(absl::StrContains(LeaseShareOf(both).why, ", "));
}

TEST_CASE("the more others use a device, the less its worker gets, and never nothing", "[scheduler]") {
  double before = 1;
  for (int percent = 0; percent <= 100; ++percent) {
    const double share = LeaseShareOf(Busy(percent / 100.0, 0)).share;
    CHECK(share <= before);
    CHECK(share >= 0.125);
    before = share;
  }
  CHECK(before == 0.125);
  CHECK(LeaseSplits(1000, 100, absl::Seconds(2), 100'000, 4, 1) == 20);
  CHECK(LeaseSplits(1000, 100, absl::Seconds(2), 100'000, 4, 0.4) == 8);
  CHECK(LeaseSplits(1000, 100, absl::Seconds(2), 100'000, 4, 0.001) == 1);
}

TEST_CASE("what is not known of a device costs its worker nothing", "[scheduler]") {
  DeviceStatus device;
  CHECK(LeaseShareOf(device).share == 1);
  device.set_utilization(1);  // Whose work it is nobody knows.
  CHECK(LeaseShareOf(device).share == 1);
  device.set_memory_used_bytes(100);
  CHECK(LeaseShareOf(device).share == 1);
  CHECK(CheckDeviceStatus(device).ok());
}

TEST_CASE("a device's status that cannot be is refused with the value", "[scheduler]") {
  const auto refused = [](const DeviceStatus& device, const std::string& part) {
    const absl::Status status = CheckDeviceStatus(device);
    INFO(status);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StrContains(status.message(), part));
  };
  refused(Busy(1.5, 0), "1.5");
  refused(Busy(std::nan(""), 0), "nan");
  refused(Busy(0.5, -1), "-1");
  DeviceStatus power;
  power.set_power_watts(std::numeric_limits<double>::infinity());
  refused(power, "inf");
  refused(Full(1, uint64_t{1} << 61), "memory");
  DeviceStatus text;
  text.set_throttled_why(std::string(limits::kProgressTextBytesMax + 1, 'x'));
  refused(text, "2049 bytes");
}

}  // namespace recon
