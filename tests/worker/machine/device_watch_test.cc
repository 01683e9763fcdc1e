#include "worker/machine/device_watch.h"

#include <atomic>

#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "tests/support/process.h"

namespace recon {
namespace {

// Counts its looks, and hangs in the one that it is told.
class CountingMonitor : public DeviceMonitor {
 public:
  CountingMonitor(std::atomic<int>* looks, Mutex* hangs) : looks_(looks), hangs_(hangs) {}

  DeviceStatus Read(absl::Time) override {
    MutexLock hang(hangs_);
    DeviceStatus status;
    status.set_memory_used_bytes(static_cast<uint64_t>(++*looks_));
    status.set_memory_total_bytes(1000);
    return status;
  }

 private:
  std::atomic<int>* const looks_;
  Mutex* const hangs_;
};

}  // namespace

TEST_CASE("a device is looked at again and again, and one whose driver hangs is not known after a while",
          "[machine]") {
  std::atomic<int> looks{0};
  Mutex hangs;
  DeviceWatch watch([&] { return std::make_unique<CountingMonitor>(&looks, &hangs); }, absl::Milliseconds(1));
  REQUIRE(Eventually([&] {
    const auto latest = watch.Latest(Now());
    return latest && latest->memory_used_bytes() >= 3;
  }));
  {
    MutexLock hang(&hangs);
    const int before = looks;
    const absl::Time now = Now();
    // Whoever asks does not wait for the driver.
    CHECK(watch.Latest(now));
    CHECK_FALSE(watch.Latest(now + DeviceWatch::kLookAgeMax + absl::Seconds(1)));
    CHECK(looks == before);
  }
  const int before = looks;
  CHECK(Eventually([&] { return looks > before; }));
}

TEST_CASE("a share of memory is known where both of its numbers are", "[machine]") {
  CHECK_FALSE(MemoryUsed(std::nullopt));
  DeviceStatus status;
  CHECK_FALSE(MemoryUsed(status));
  status.set_memory_used_bytes(250);
  CHECK_FALSE(MemoryUsed(status));
  status.set_memory_total_bytes(1000);
  CHECK(*MemoryUsed(status) == 0.25);
}

}  // namespace recon
