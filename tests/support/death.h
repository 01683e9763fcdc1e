#pragma once

#include <functional>
#include <string>

namespace recon {

// How a process ended that ran a function, and what it wrote to standard error.
struct Death {
  int signal = 0;  // 0: the function returned.
  std::string stderr_text;
};

// Runs `mistake` in a child process: a broken invariant (common/base/check.h) ends it by SIGABRT. The child
// is a copy with this thread alone: what `mistake` needs other threads for, it starts itself.
Death DeathOf(const std::function<void()>& mistake);

}  // namespace recon
