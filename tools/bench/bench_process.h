#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace recon {

// A child process for a measurement: killed and waited for at the end.
class BenchProcess {
 public:
  // `arguments[0]` is a program beside this one. Its output goes to `log`.
  BenchProcess(std::vector<std::string> arguments, const std::string& log);
  ~BenchProcess();
  BenchProcess(const BenchProcess&) = delete;
  BenchProcess& operator=(const BenchProcess&) = delete;

  pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

// A part of a measurement in a process of its own: this program under another verb, spoken to by lines.
class BenchPeer {
 public:
  // Runs `recon-bench ARGUMENTS...`; what it says besides goes to this process' standard error.
  explicit BenchPeer(const std::vector<std::string>& arguments);
  ~BenchPeer();
  BenchPeer(const BenchPeer&) = delete;
  BenchPeer& operator=(const BenchPeer&) = delete;

  pid_t pid() const { return pid_; }
  void Say(const std::string& line);
  // The next line it prints; Unavailable if it has ended.
  absl::StatusOr<std::string> Hear();

 private:
  pid_t pid_;
  FILE* to_;
  FILE* from_;
};

// CPU seconds the whole machine has been busy: processes, and what the kernel does for networks beside them.
double MachineCpuSeconds();
// Bytes of its memory that are resident now.
uint64_t ResidentBytesOf(pid_t pid);

// A directory of its own, removed at the end.
class BenchDirectory {
 public:
  // Below `parent`; by default where temporary files are.
  explicit BenchDirectory(const std::string& parent = "");
  ~BenchDirectory();
  BenchDirectory(const BenchDirectory&) = delete;
  BenchDirectory& operator=(const BenchDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace recon
