#include "common/base/owned_fd.h"

#include <unistd.h>

#include <cstdint>

namespace recon {

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) close(fd_);
}

void WakeUp(const OwnedFd& event) {
  const uint64_t one = 1;
  // Full means that it has been woken already.
  static_cast<void>(!write(event.get(), &one, sizeof(one)));
}

void ForgetWakeUps(const OwnedFd& event) {
  uint64_t count = 0;
  static_cast<void>(!read(event.get(), &count, sizeof(count)));
}

}  // namespace recon
