#pragma once

#include <cstdint>
#include <string>

namespace recon {

// The bytes of memory that this process may use before the system ends it: the machine's, or fewer where its
// control group (a container's, a systemd unit's, a Slurm job's) or one of those above has a limit, of either
// version. `root` is before all paths that are read. Thread-safe; reads a few files.
uint64_t MemoryLimit(const std::string& root = "");

}  // namespace recon
