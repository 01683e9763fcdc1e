#pragma once

#include <utility>

namespace recon {

// A file descriptor that is closed at the end; -1 for none. Not thread-safe, but get() is.
class OwnedFd {
 public:
  OwnedFd() = default;
  explicit OwnedFd(int fd) : fd_(fd) {}
  OwnedFd(OwnedFd&& other) noexcept : fd_(other.Release()) {}
  OwnedFd& operator=(OwnedFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~OwnedFd();

  int get() const { return fd_; }
  // Whoever calls it closes it.
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// Wakes whoever polls this eventfd, which must not block. Thread-safe.
void WakeUp(const OwnedFd& event);
// Forgets that it was woken. Thread-safe.
void ForgetWakeUps(const OwnedFd& event);

}  // namespace recon
