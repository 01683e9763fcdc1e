#include "worker/machine/machine_monitor.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/control_group.h"
#include "common/base/cpu_usage.h"
#include "common/base/machine_limits.h"

namespace recon {
namespace {

std::vector<int> AllowedCores() {
  std::vector<int> cores;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  return cores;
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::string text;
  uint64_t number = 0;
  if (!(std::ifstream(path) >> text) || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

// The number in the line that begins with the word `name`.
std::optional<uint64_t> ReadNamed(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word, value;
    uint64_t number = 0;
    if (words >> word >> value && word == name) {
      return absl::SimpleAtoi(value, &number) ? std::optional(number) : std::nullopt;
    }
  }
  return std::nullopt;
}

}  // namespace

MachineMonitor::MachineMonitor(std::string root, std::vector<int> cores)
    : root_(std::move(root)), cores_(cores.empty() ? AllowedCores() : std::move(cores)) {}

std::optional<MachineMonitor::Used> MachineMonitor::ReadGroupUsed() const {
  const std::optional<CoreQuota> quota = TightestCoreQuota(root_);
  if (!quota) return std::nullopt;
  Used used;
  used.of_group = true;
  used.capacity = quota->cores;
  if (const auto microseconds = ReadNamed(quota->directory + "/cpu.stat", "usage_usec")) {
    used.busy_seconds = 1e-6 * static_cast<double>(*microseconds);
  } else if (const auto nanoseconds = ReadNumber(quota->directory + "/cpuacct.usage")) {  // Version 1.
    used.busy_seconds = 1e-9 * static_cast<double>(*nanoseconds);
  } else {
    return std::nullopt;
  }
  return used;
}

std::optional<MachineMonitor::Used> MachineMonitor::ReadMachineUsed() const {
  const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (cores_.empty() || ticks_per_second <= 0) return std::nullopt;
  const std::set<int> wanted(cores_.begin(), cores_.end());
  Used used;
  std::ifstream file(root_ + "/proc/stat");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int core = 0;
    words >> name;
    absl::string_view number = name;
    if (!absl::ConsumePrefix(&number, "cpu") || !absl::SimpleAtoi(number, &core) || wanted.count(core) == 0) {
      continue;
    }
    // user nice system idle iowait irq softirq steal; what guests have is in user and nice.
    uint64_t ticks[8] = {};
    int known = 0;
    while (known < 8 && words >> ticks[known]) ++known;
    if (known < 4) continue;
    const uint64_t busy = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7];
    used.busy_seconds += static_cast<double>(busy) / ticks_per_second;
    used.capacity += 1;
  }
  return used.capacity > 0 ? std::optional(used) : std::nullopt;
}

std::optional<MachineMonitor::Memory> MachineMonitor::ReadMemory() const {
  std::optional<Memory> fullest;
  const auto share = [](const Memory& memory) {
    return static_cast<double>(memory.used) / static_cast<double>(memory.total);
  };
  const auto note = [&](const Memory& memory) {
    if (memory.total == 0 || memory.used > memory.total) return;
    if (!fullest || share(memory) > share(*fullest)) fullest = memory;
  };
  const std::string meminfo = root_ + "/proc/meminfo";
  const std::optional<uint64_t> total = ReadNamed(meminfo, "MemTotal:");
  const std::optional<uint64_t> available = ReadNamed(meminfo, "MemAvailable:");
  const uint64_t machine_kib = total.value_or(std::numeric_limits<uint64_t>::max() / 1024);
  if (total && available && *available <= *total && *total < uint64_t{1} << 50) {
    note({false, (*total - *available) * 1024, *total * 1024});
  }
  VisitControlGroups(root_, "memory", "memory.max", "memory.limit_in_bytes", [&](const std::string& path) {
    // None: version 2 says "max", version 1 a number beyond all memory.
    const std::optional<uint64_t> limit = ReadNumber(path);
    if (!limit || *limit / 1024 > machine_kib) return;
    const std::string directory = path.substr(0, path.rfind('/'));
    std::optional<uint64_t> used = ReadNumber(directory + "/memory.current");
    std::optional<uint64_t> cached = ReadNamed(directory + "/memory.stat", "inactive_file");
    if (!used) {  // Version 1.
      used = ReadNumber(directory + "/memory.usage_in_bytes");
      cached = ReadNamed(directory + "/memory.stat", "total_inactive_file");
    }
    if (!used) return;
    note({true, *used - std::min(*used, cached.value_or(0)), *limit});
  });
  return fullest;
}

DeviceStatus MachineMonitor::Read(absl::Time now) {
  DeviceStatus status;
  status.set_name("cpu");
  std::optional<Used> used = ReadGroupUsed();
  if (!used) used = ReadMachineUsed();
  const double own_seconds = ProcessCpuSeconds();
  const double seconds = absl::ToDoubleSeconds(now - looked_);
  // A group that has changed since has counted something else.
  const bool comparable =
      used && used_ && used->of_group == used_->of_group && used->busy_seconds >= used_->busy_seconds;
  if (comparable && seconds > 0) {
    const double capacity = used->capacity * seconds;
    const double share = std::min(1.0, (used->busy_seconds - used_->busy_seconds) / capacity);
    status.set_utilization(share);
    status.set_own_utilization(std::min(share, std::max(0.0, own_seconds - own_seconds_) / capacity));
  }
  used_ = used;
  own_seconds_ = own_seconds;
  looked_ = now;
  const std::optional<Memory> memory = ReadMemory();
  if (memory) {
    status.set_memory_used_bytes(memory->used);
    status.set_memory_total_bytes(memory->total);
  }
  const char* of_time = used && used->of_group ? "cgroup" : "machine";
  const char* of_memory = memory && memory->of_group ? "cgroup" : "machine";
  status.set_source(of_time == std::string(of_memory) ? of_time
                                                      : absl::StrCat(of_time, ", memory of ", of_memory));
  if (!used && !memory)
    status.set_problem("neither /proc/stat, /proc/meminfo nor a control group can be read");
  return status;
}

}  // namespace recon
