#include "worker/machine/machine_monitor.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/cpu_usage.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

// A machine of files.
struct Files {
  TempDir root;
  absl::Time now = absl::FromUnixSeconds(1000);

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file(root.path() + path);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  // Of cores 0 and 1, the seconds that each was busy and idle.
  void WriteStat(double busy0, double idle0, double busy1, double idle1) const {
    const auto ticks = [](double seconds) {
      return static_cast<uint64_t>(seconds * static_cast<double>(sysconf(_SC_CLK_TCK)));
    };
    const auto core = [&](int number, double busy, double idle) {
      // Half of it is the user's, half the kernel's; of the idle time half waits for disks.
      return absl::StrCat("cpu", number, " ", ticks(busy / 2), " 0 ", ticks(busy / 2), " ", ticks(idle / 2),
                          " ", ticks(idle / 2), " 0 0 0 0 0\n");
    };
    Write("/proc/stat", absl::StrCat("cpu  1 2 3 4 5 6 7 8 9 10\n", core(0, busy0, idle0),
                                     core(1, busy1, idle1), core(10, 1e6, 0), "intr 1 2 3\nctxt 5"));
  }
  DeviceStatus ReadAfter(MachineMonitor* monitor, double seconds) {
    return monitor->Read(now += absl::Seconds(seconds));
  }
};

}  // namespace

TEST_CASE("a machine's cores are busy as /proc/stat says, of those that a process may use", "[machine]") {
  Files files;
  files.WriteStat(100, 100, 50, 100);
  files.Write("/proc/meminfo", "MemTotal:       1000000 kB\nMemFree:  1 kB\nMemAvailable:    250000 kB");
  MachineMonitor both(files.root.path(), {0, 1});
  MachineMonitor one(files.root.path(), {1});
  CHECK_FALSE(files.ReadAfter(&both, 1).has_utilization());  // There is nothing to compare with.
  one.Read(files.now);
  files.WriteStat(108, 102, 52, 108);
  const DeviceStatus status = files.ReadAfter(&both, 10);
  CHECK(status.utilization() == Approx(0.5));
  CHECK(status.has_own_utilization());
  CHECK(status.own_utilization() <= 0.5);
  CHECK(status.name() == "cpu");
  CHECK(status.source() == "machine");
  CHECK(status.memory_total_bytes() == 1'024'000'000);
  CHECK(status.memory_used_bytes() == 768'000'000);
  CHECK_FALSE(status.has_power_watts());
  CHECK_FALSE(status.has_throttled());
  CHECK(one.Read(files.now).utilization() == Approx(0.2));
}

TEST_CASE("what this process computes is told from what others do", "[machine]") {
  Files files;
  files.WriteStat(0, 0, 0, 0);
  MachineMonitor monitor(files.root.path(), {0, 1});
  files.ReadAfter(&monitor, 1);
  const double before = ProcessCpuSeconds();
  while (ProcessCpuSeconds() - before < 0.05) {
  }
  files.WriteStat(0.2, 0, 0.2, 0);  // Busy all the time, of 0.2 s.
  const DeviceStatus status = files.ReadAfter(&monitor, 0.2);
  CHECK(status.utilization() == Approx(1));
  CHECK(status.own_utilization() >= 0.05 / 0.4);
  CHECK(status.own_utilization() <= 1);
}

TEST_CASE("with a quota of its control group, what is used of that counts", "[machine]") {
  Files files;
  files.WriteStat(0, 0, 0, 0);
  const std::string group = "/sys/fs/cgroup/job";
  SECTION("version 2") {
    files.Write("/proc/self/cgroup", "0::/job");
    files.Write(group + "/cpu.max", "50000 100000");
    files.Write(group + "/cpu.stat", "usage_usec 1000000\nuser_usec 7");
    MachineMonitor monitor(files.root.path(), {0, 1});
    files.ReadAfter(&monitor, 1);
    files.Write(group + "/cpu.stat", "usage_usec 2000000\nuser_usec 7");
    const DeviceStatus status = files.ReadAfter(&monitor, 4);
    CHECK(status.utilization() == Approx(0.5));  // A second of two.
    CHECK(status.source() == "cgroup, memory of machine");
    // A group that begins anew has counted nothing that can be compared.
    files.Write(group + "/cpu.stat", "usage_usec 5");
    CHECK_FALSE(files.ReadAfter(&monitor, 1).has_utilization());
  }
  SECTION("version 1") {
    files.Write("/proc/self/cgroup", "4:cpu,cpuacct:/job");
    const std::string cpu = "/sys/fs/cgroup/cpu/job";
    files.Write(cpu + "/cpu.cfs_quota_us", "200000");
    files.Write(cpu + "/cpu.cfs_period_us", "100000");
    files.Write(cpu + "/cpuacct.usage", "1000000000");
    MachineMonitor monitor(files.root.path(), {0, 1});
    files.ReadAfter(&monitor, 1);
    files.Write(cpu + "/cpuacct.usage", "9000000000");
    CHECK(files.ReadAfter(&monitor, 5).utilization() == Approx(0.8));
  }
  SECTION("a quota without a count: the machine's cores") {
    files.Write("/proc/self/cgroup", "0::/job");
    files.Write(group + "/cpu.max", "50000 100000");
    MachineMonitor monitor(files.root.path(), {0, 1});
    files.ReadAfter(&monitor, 1);
    files.WriteStat(1, 3, 1, 3);
    CHECK(files.ReadAfter(&monitor, 4).utilization() == Approx(0.25));
  }
}

TEST_CASE("memory is that of the machine or of the group with a limit, whichever is fuller", "[machine]") {
  Files files;
  files.Write("/proc/meminfo", "MemTotal: 1000000 kB\nMemAvailable: 500000 kB");
  files.Write("/proc/self/cgroup", "0::/job");
  const std::string group = "/sys/fs/cgroup/job";
  MachineMonitor monitor(files.root.path(), {0});
  files.Write(group + "/memory.max", "max");
  files.Write(group + "/memory.current", "1000");
  CHECK(files.ReadAfter(&monitor, 1).memory_total_bytes() == 1'024'000'000);
  files.Write(group + "/memory.max", "1000000");
  files.Write(group + "/memory.current", "900000");
  DeviceStatus status = files.ReadAfter(&monitor, 1);
  CHECK(status.memory_total_bytes() == 1'000'000);
  CHECK(status.memory_used_bytes() == 900'000);
  // What is cached of files can be given back.
  files.Write(group + "/memory.stat", "anon 5\ninactive_file 600000");
  status = files.ReadAfter(&monitor, 1);
  CHECK(status.memory_used_bytes() == 512'000'000);
  files.Write("/proc/self/cgroup", "5:memory:/job");
  files.Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2000000");
  files.Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "1900000");
  files.Write("/sys/fs/cgroup/memory/job/memory.stat", "cache 9\ntotal_inactive_file 100000");
  status = files.ReadAfter(&monitor, 1);
  CHECK(status.memory_used_bytes() == 1'800'000);
  CHECK(status.memory_total_bytes() == 2'000'000);
}

TEST_CASE("files that are missing or make no sense tell nothing, which is not 0", "[machine]") {
  Files files;
  MachineMonitor monitor(files.root.path(), {0, 1});
  files.ReadAfter(&monitor, 1);
  const DeviceStatus status = files.ReadAfter(&monitor, 1);
  CHECK_FALSE(status.has_utilization());
  CHECK_FALSE(status.has_own_utilization());
  CHECK_FALSE(status.has_memory_used_bytes());
  CHECK_FALSE(status.has_memory_total_bytes());
  CHECK_FALSE(status.problem().empty());
  for (const std::string stat : {"", "cpu0", "cpu0 1 2", "cpu0 x y z w", "cpu-1 1 2 3 4", "cpu7 1 2 3 4"}) {
    files.Write("/proc/stat", stat);
    files.ReadAfter(&monitor, 1);
    CHECK_FALSE(files.ReadAfter(&monitor, 1).has_utilization());
  }
  for (const std::string meminfo :
       {"MemTotal: 5 kB", "MemTotal: x\nMemAvailable: 5", "MemTotal: 0 kB\nMemAvailable: 0 kB",
        "MemTotal: 5 kB\nMemAvailable: 6 kB", "MemTotal: 99999999999999999999 kB\nMemAvailable: 1 kB"}) {
    files.Write("/proc/meminfo", meminfo);
    CHECK_FALSE(files.ReadAfter(&monitor, 1).has_memory_used_bytes());
  }
  // The same time twice.
  files.WriteStat(1, 1, 1, 1);
  files.ReadAfter(&monitor, 1);
  files.WriteStat(2, 2, 2, 2);
  CHECK_FALSE(files.ReadAfter(&monitor, 0).has_utilization());
}

TEST_CASE("the machine that the test runs on can be looked at", "[machine]") {
  const std::unique_ptr<DeviceMonitor> monitor = MakeDeviceMonitor("cpu");
  const absl::Time now = absl::FromUnixSeconds(1000);
  monitor->Read(now);
  const double before = ProcessCpuSeconds();
  while (ProcessCpuSeconds() - before < 0.05) {
  }
  const DeviceStatus status = monitor->Read(now + absl::Milliseconds(100));
  INFO(status.ShortDebugString());
  CHECK(status.has_utilization());
  CHECK(status.own_utilization() > 0);
  CHECK(status.memory_used_bytes() > 0);
  CHECK(status.memory_used_bytes() <= status.memory_total_bytes());
}

}  // namespace recon
