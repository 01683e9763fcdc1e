#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <system_error>

namespace recon {

// What this process may use of its machine besides memory. 0 means no limit.
struct MachineLimits {
  int cores_of_machine = 1;
  // That this process may run on (sched_setaffinity, cpusets).
  int cores_allowed = 1;
  // Of processor time in cores, by the control group's quota or those above.
  double core_quota = 0;
  uint64_t descriptors = 0;  // RLIMIT_NOFILE, soft.
  uint64_t file_bytes = 0;   // RLIMIT_FSIZE, soft.
  uint64_t threads = 0;      // Of the control groups (pids.max) or the user, of all processes together.

  // How many threads may compute at once: at least 1.
  int Cores() const;
};

// `root` is before all paths that are read. Thread-safe; reads a few files.
MachineLimits ReadMachineLimits(const std::string& root = "");

// The least quota of processor time among the process' control group and those above, and the directory of
// the group that has it; none without one. `root` as above. Thread-safe; reads a few files.
struct CoreQuota {
  double cores = 0;
  std::string directory;
};
std::optional<CoreQuota> TightestCoreQuota(const std::string& root = "");

// Raises the soft limits of descriptors and of the size of files to the hard ones, and has a write beyond the
// latter return an error (SIGXFSZ). Once, in main.
void RaiseLimits();

// What is said of a thread that could not be started: the limit that was reached, and how to raise it.
std::string MissingThread(const std::system_error& error);

// Has a thread that cannot be started, wherever it is, end the process with 1 and a line that says so,
// instead of aborting it. Once, in main.
void ExplainMissingThreads();

// "4 of 16 cores by the control group's quota, 1,048,576 descriptors".
std::string Describe(const MachineLimits& limits);

// What is too little for a job of so many workers, as a sentence with the numbers; empty if nothing is.
std::string TooLittle(const MachineLimits& limits, int workers);

// ReadMachineLimits().Cores(), read once. Defaults of thread counts are made from it.
int UsableCores();

}  // namespace recon
