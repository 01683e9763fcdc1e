#include "worker/machine/nvml_monitor.h"

#include <dlfcn.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/process.h"
#include "tests/support/fake_nvml.h"

namespace recon {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1000);

// A driver that is not there, in a library of its own.
struct FakeDriver {
  const std::string path;
  FakeNvml* answers = nullptr;
  FakeNvml before{};

  explicit FakeDriver(const std::string& name) : path(absl::StrCat(ProgramDirectory(), "/", name, ".so")) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    answers = static_cast<FakeNvml*>(dlsym(library, "fake_nvml"));
    before = *answers;
  }
  ~FakeDriver() { *answers = before; }

  absl::StatusOr<std::unique_ptr<NvmlMonitor>> Open(int device = 0) const {
    return NvmlMonitor::Open({path, path}, device);
  }
};

}  // namespace

TEST_CASE("NVML says how a GPU is, and CUDA which one it is", "[machine]") {
  FakeDriver driver("fake_nvml");
  driver.answers->device_name = "Made-up GPU\n80GB";
  driver.answers->percent = 90;
  driver.answers->memory_used = 60'000'000'000;
  driver.answers->milliwatts = 312'500;
  driver.answers->limit_milliwatts = 700'000;
  driver.answers->clock_reasons = 0x1 | 0x4 | 0x40;  // Idle is no throttling.
  {
    const auto monitor = driver.Open(1);
    REQUIRE(monitor.ok());
    CHECK(std::string(driver.answers->bus_id) == "0000:0b:00.0");
    const DeviceStatus status = (*monitor)->Read(kNow);
    CHECK(status.name() == "Made-up GPU?80GB");
    CHECK(status.source() == "nvml");
    CHECK(status.utilization() == Approx(0.9));
    CHECK(status.memory_used_bytes() == 60'000'000'000);
    CHECK(status.memory_total_bytes() == 80'000'000'000);
    CHECK(status.power_watts() == 312.5);
    CHECK(status.power_limit_watts() == 700);
    CHECK(status.throttled());
    CHECK(status.throttled_why() == "power cap, heat, by hardware");
    CHECK(status.problem().empty());
    driver.answers->clock_reasons = 0x1;
    CHECK((*monitor)->Read(kNow).has_throttled());
    CHECK_FALSE((*monitor)->Read(kNow).throttled());
  }
  CHECK(driver.answers->initialized == driver.answers->shut_down);
}

TEST_CASE("of a GPU's work NVML tells what is this process' by its number", "[machine]") {
  FakeDriver driver("fake_nvml");
  driver.answers->percent = 80;
  driver.answers->samples = 3;
  const unsigned own = static_cast<unsigned>(getpid());
  const auto pids = [&](unsigned first, unsigned second, unsigned third) {
    driver.answers->pids[0] = first;
    driver.answers->pids[1] = second;
    driver.answers->pids[2] = third;
  };
  driver.answers->percents[0] = 50;
  driver.answers->percents[1] = 20;
  driver.answers->percents[2] = 40;
  const auto monitor = driver.Open();
  REQUIRE(monitor.ok());
  // In a container its number may be another one: nobody knows.
  pids(1, 2, 3);
  CHECK_FALSE((*monitor)->Read(kNow).has_own_utilization());
  pids(own, 2, own);
  CHECK((*monitor)->Read(kNow).own_utilization() == Approx(0.45));
  pids(1, 2, 3);
  CHECK((*monitor)->Read(kNow).has_own_utilization());
  CHECK((*monitor)->Read(kNow).own_utilization() == 0);
  driver.answers->samples = 0;
  CHECK((*monitor)->Read(kNow).own_utilization() == 0);
  // Its look is another one than that of the whole: it is never more.
  driver.answers->samples = 1;
  pids(own, 0, 0);
  driver.answers->percent = 30;
  CHECK((*monitor)->Read(kNow).own_utilization() == Approx(0.3));
}

TEST_CASE("what a GPU does not answer, or answers without sense, is not known", "[machine]") {
  FakeDriver driver("fake_nvml");
  driver.answers->milliwatts = 1000;
  const auto monitor = driver.Open();
  REQUIRE(monitor.ok());
  constexpr int kNotSupported = 3, kGpuIsLost = 15;
  driver.answers->utilization = kNotSupported;
  driver.answers->reasons = kNotSupported;
  DeviceStatus status = (*monitor)->Read(kNow);
  CHECK_FALSE(status.has_utilization());
  CHECK_FALSE(status.has_own_utilization());
  CHECK_FALSE(status.has_throttled());
  CHECK(status.has_memory_used_bytes());
  driver.answers->utilization = 0;
  driver.answers->percent = 101;
  driver.answers->memory_used = driver.answers->memory_total + 1;
  driver.answers->milliwatts = 4'000'000'000;
  status = (*monitor)->Read(kNow);
  CHECK_FALSE(status.has_utilization());
  CHECK_FALSE(status.has_memory_used_bytes());
  CHECK_FALSE(status.has_power_watts());
  CHECK(absl::StrContains(status.problem(), "NVML answers none"));
  // It falls off the bus.
  driver.answers->percent = 50;
  driver.answers->utilization = driver.answers->memory = driver.answers->power = kGpuIsLost;
  CHECK(absl::StrContains((*monitor)->Read(kNow).problem(), "NVML answers none"));
}

TEST_CASE("an older driver's NVML has fewer functions, and the rest is known", "[machine]") {
  FakeDriver driver("fake_nvml_old");
  driver.answers->percent = 10;
  driver.answers->clock_reasons = 0x80;
  const auto monitor = driver.Open();
  REQUIRE(monitor.ok());
  const DeviceStatus status = (*monitor)->Read(kNow);
  CHECK(status.utilization() == Approx(0.1));
  CHECK_FALSE(status.has_own_utilization());
  CHECK(status.throttled_why() == "power brake");
}

TEST_CASE("a machine without NVML, or with one that does not work, is told in one line", "[machine]") {
  const auto why = [](const absl::StatusOr<std::unique_ptr<NvmlMonitor>>& opened) {
    REQUIRE_FALSE(opened.ok());
    return std::string(opened.status().message());
  };
  FakeDriver driver("fake_nvml");
  CHECK(absl::StrContains(why(NvmlMonitor::Open({"/nowhere/libnvidia-ml.so.1", driver.path}, 0)),
                          "/nowhere/libnvidia-ml.so.1"));
  CHECK(absl::StrContains(why(NvmlMonitor::Open({driver.path, "/nowhere/libcuda.so.1"}, 0)),
                          "/nowhere/libcuda.so.1"));
  CHECK(absl::EndsWith(why(FakeDriver("fake_nvml_none").Open()), " has no nvmlInit_v2"));
  CHECK(why(driver.Open(2)) == "CUDA: device 2: error 101");
  driver.answers->init = 18;
  CHECK(why(driver.Open()) == "NVML: nvmlInit_v2: Driver/library version mismatch");
  driver.answers->init = 0;
  driver.answers->handle = 15;
  CHECK(why(driver.Open()) == "NVML: nvmlDeviceGetHandleByPciBusId_v2: GPU is lost");
  CHECK(driver.answers->initialized == driver.answers->shut_down);

  const std::unique_ptr<DeviceMonitor> none = MakeDeviceMonitor("cuda:x");
  CHECK(none->Read(kNow).problem() == "no CUDA device is named cuda:x");
  CHECK_FALSE(none->Read(kNow).has_utilization());
}

}  // namespace recon
