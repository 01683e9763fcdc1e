#include "tests/support/death.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

namespace recon {

Death DeathOf(const std::function<void()>& mistake) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no child process");
  if (child == 0) {
    signal(SIGABRT, SIG_DFL);  // The test framework's handler would report a failed test.
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(ends[1], STDERR_FILENO);
    try {
      mistake();
    } catch (...) {  // It must not come into the tests that follow, in this process.
      _exit(1);
    }
    _exit(0);
  }
  close(ends[1]);
  Death death;
  char buffer[4096];
  for (ssize_t bytes; (bytes = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    death.stderr_text.append(buffer, static_cast<size_t>(bytes));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status)) death.signal = WTERMSIG(status);
  return death;
}

}  // namespace recon
