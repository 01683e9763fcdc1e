#include "tests/support/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "common/base/clock.h"
#include "common/base/process.h"
#include "common/base/sleep.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(10);

}  // namespace

Process::Process(std::vector<std::string> arguments, std::string log, std::vector<std::string> environment)
    : log_(std::move(log)) {
  if (arguments[0].find('/') == std::string::npos) arguments[0] = ProgramDirectory() + "/" + arguments[0];
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (std::string& entry : environment) envp.push_back(entry.data());  // The first of a name counts.
  for (char** entry = environ; *entry != nullptr; ++entry) envp.push_back(*entry);
  envp.push_back(nullptr);
  const int fd = open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(fd);
}

Process::~Process() {
  if (running()) Kill();
}

void Process::Signal(int signal) { kill(pid_, signal); }

void Process::Kill() {
  Signal(SIGKILL);
  Wait(absl::Seconds(30));
}

bool Process::running() {
  if (ended_) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  ended_ = true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return false;
}

int Process::Wait(absl::Duration timeout) {
  return Eventually([this] { return !running(); }, timeout) ? exit_code_ : -1;
}

std::string Process::output() const { return ReadWholeFile(log_); }

int RunProgram(const std::vector<std::string>& arguments, std::string* output, absl::Duration timeout) {
  const TempDir directory;
  Process process(arguments, directory / "output");
  const int code = process.Wait(timeout);
  *output = process.output();
  return code;
}

bool Eventually(const std::function<bool()>& condition, absl::Duration timeout) {
  const absl::Time deadline = Now() + timeout;
  while (!condition()) {
    if (Now() > deadline) return false;
    Sleep(kPoll);
  }
  return true;
}

}  // namespace recon
