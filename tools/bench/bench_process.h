#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace recon {

// A child process for a measurement: killed and waited for at the end.
class BenchProcess {
 public:
  // `arguments[0]` is a program beside this one. Its output goes to `log`.
  BenchProcess(std::vector<std::string> arguments, const std::string& log);
  ~BenchProcess();
  BenchProcess(const BenchProcess&) = delete;
  BenchProcess& operator=(const BenchProcess&) = delete;

 private:
  pid_t pid_;
};

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
