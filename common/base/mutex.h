#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"

namespace recon {

// A mutex with conditions: whoever unlocks wakes those who wait, and they look for themselves.
//
// On the standard library's mutex, which ThreadSanitizer knows. Distributions ship Abseil's mutex without the
// sanitizer's annotations: it would report every guarded field.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    // Under the lock: afterwards whoever waited may destroy this object.
    if (waiters_ > 0) changed_.notify_all();
    mu_.unlock();
  }

  // Waits until `condition()` holds. Call it with the lock held; the condition runs under it.
  template <typename Condition>
  void Await(Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    std::unique_lock<std::mutex> lock(mu_, std::adopt_lock);
    if (waiters_++ > 0) changed_.notify_all();  // Waiting unlocks, too.
    changed_.wait(lock, condition);
    --waiters_;
    lock.release();
  }

  // The same, for at most `timeout`; what the condition was at the end.
  template <typename Condition>
  bool AwaitFor(absl::Duration timeout, Condition condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    std::unique_lock<std::mutex> lock(mu_, std::adopt_lock);
    if (waiters_++ > 0) changed_.notify_all();
    // wait_until the system clock: wait_for is a call ThreadSanitizer of GCC 12 does not know.
    const auto deadline = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout);
    const bool held = changed_.wait_until(lock, deadline, condition);
    --waiters_;
    lock.release();
    return held;
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  int waiters_ = 0;
};

class ABSL_SCOPED_LOCKABLE MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ABSL_EXCLUSIVE_LOCK_FUNCTION(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() ABSL_UNLOCK_FUNCTION() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* mu_;
};

// Something that happens once, waited for by others.
class Notification {
 public:
  void Notify() {
    MutexLock lock(&mu_);
    notified_ = true;
  }
  void WaitForNotification() {
    MutexLock lock(&mu_);
    mu_.Await([this] { return notified_; });
  }
  bool HasBeenNotified() {
    MutexLock lock(&mu_);
    return notified_;
  }

 private:
  Mutex mu_;
  bool notified_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace recon
