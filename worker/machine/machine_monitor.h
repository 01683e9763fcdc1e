#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/machine/device_monitor.h"

namespace recon {

// The machine's cores and memory as a device. Where a control group (a container's, a systemd unit's, a Slurm
// job's) has a quota of processor time, that is what is used of the quota; else what is used of the cores
// that this process may run on. Memory is the machine's, or that of the group with a limit, whichever is
// fuller: what can be given back at once (caches of files) is not counted.
class MachineMonitor : public DeviceMonitor {
 public:
  // `root` is before all paths that are read. `cores`: the numbers of the process' cores; empty: those it may
  // run on.
  explicit MachineMonitor(std::string root = "", std::vector<int> cores = {});

  DeviceStatus Read(absl::Time now) override;

 private:
  // Processor time of all cores (or of the group), since some beginning.
  struct Used {
    bool of_group = false;
    double busy_seconds = 0;
    double capacity = 0;  // Of a second, in seconds: cores, or the quota.
  };
  struct Memory {
    bool of_group = false;
    uint64_t used = 0, total = 0;
  };

  std::optional<Used> ReadGroupUsed() const;
  std::optional<Used> ReadMachineUsed() const;
  std::optional<Memory> ReadMemory() const;

  // Set in the constructor.
  const std::string root_;
  const std::vector<int> cores_;

  // As of the look before.
  std::optional<Used> used_;
  double own_seconds_ = 0;
  absl::Time looked_ = absl::InfinitePast();
};

}  // namespace recon
