#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace recon {

// A child process with its output in a file. Killed and waited for at the end.
class Process {
 public:
  // `arguments[0]` is the program; names without '/' are taken from the build's bin directory.
  // `environment` has NAME=VALUE entries to add, or to replace others.
  Process(std::vector<std::string> arguments, std::string log, std::vector<std::string> environment = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal);
  void Kill();  // SIGKILL, and waits.
  // Exit code; 128 + signal if killed by one; -1 if it still runs after `timeout`.
  int Wait(absl::Duration timeout);
  bool running();
  std::string output() const;

 private:
  pid_t pid_ = -1;
  int exit_code_ = -1;
  bool ended_ = false;
  std::string log_;
};

// Runs a program to its end; returns its exit code and fills `output` with standard output and error.
int RunProgram(const std::vector<std::string>& arguments, std::string* output,
               absl::Duration timeout = absl::Seconds(60));

// Waits until `condition` holds; false at the deadline.
bool Eventually(const std::function<bool()>& condition, absl::Duration timeout = absl::Seconds(30));

}  // namespace recon
