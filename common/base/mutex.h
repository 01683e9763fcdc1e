#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "common/base/check.h"

namespace recon {

// A mutex with conditions: whoever unlocks looks which of those who wait may go on, and wakes these.
//
// On the standard library's mutex, which ThreadSanitizer knows. Distributions ship Abseil's mutex without the
// sanitizer's annotations: it would report every guarded field.
class ABSL_LOCKABLE Mutex {
 public:
  Mutex() = default;
  ~Mutex() { RECON_CHECK(waiters_ == nullptr, "somebody still waits for a mutex that is destroyed"); }
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() { mu_.lock(); }
  void Unlock() ABSL_UNLOCK_FUNCTION() {
    // Under the lock: afterwards whoever waited may destroy this object.
    if (waiters_ != nullptr) WakeWaiters();
    mu_.unlock();
  }

  // Tells the compiler that whoever calls this holds the lock; it is not checked when the program runs.
  void AssertHeld() const ABSL_ASSERT_EXCLUSIVE_LOCK() {}

  // Waits until `condition()` holds. Call it with the lock held; the condition runs under it, and on other
  // threads: it may look at nothing but what the mutex guards, and at what the caller has in scope.
  void Await(absl::FunctionRef<bool()> condition) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    Wait(condition, [](Waiter* waiter, std::unique_lock<std::mutex>* lock) {
      waiter->changed.wait(*lock);
      return true;
    });
  }

  // The same, for at most `timeout`; what the condition was at the end.
  bool AwaitFor(absl::Duration timeout, absl::FunctionRef<bool()> condition)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    const auto deadline = WaitClock::now() + absl::ToChronoMilliseconds(timeout);
    return Wait(condition, [deadline](Waiter* waiter, std::unique_lock<std::mutex>* lock) {
      return waiter->changed.wait_until(*lock, deadline) == std::cv_status::no_timeout;
    });
  }

 private:
#if defined(__SANITIZE_THREAD__)
  // ThreadSanitizer of GCC 12 does not know the call that waits by another clock.
  using WaitClock = std::chrono::system_clock;
#else
  using WaitClock = std::chrono::steady_clock;  // The system's may be set meanwhile.
#endif

  struct Waiter {
    absl::FunctionRef<bool()> condition;
    std::condition_variable changed;
    bool woken = false;
    Waiter* next = nullptr;
  };

  // `wait` blocks until the waiter is woken, perhaps for nothing, and says whether to wait on.
  template <typename WaitOnce>
  bool Wait(absl::FunctionRef<bool()> condition, const WaitOnce& wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(this) {
    if (condition()) return true;
    if (waiters_ != nullptr) WakeWaiters();  // Waiting unlocks, too.
    std::unique_lock<std::mutex> lock(mu_, std::adopt_lock);
    Waiter waiter{condition, {}, false, waiters_};
    waiters_ = &waiter;
    bool held = false;
    for (bool in_time = true; in_time && !held;) {
      waiter.woken = false;
      in_time = wait(&waiter, &lock);
      held = condition();
    }
    Waiter** at = &waiters_;
    while (*at != &waiter) {
      RECON_CHECK(*at != nullptr, "a waiter is not among those who wait");
      at = &(*at)->next;
    }
    *at = waiter.next;
    lock.release();
    return held;
  }

  void WakeWaiters() {
    for (Waiter* waiter = waiters_; waiter != nullptr; waiter = waiter->next) {
      if (waiter->woken || !waiter->condition()) continue;
      waiter->woken = true;
      waiter->changed.notify_one();
    }
  }

  std::mutex mu_;
  Waiter* waiters_ = nullptr;
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
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return notified_; });
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
