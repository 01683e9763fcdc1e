#pragma once

#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"

namespace recon {

// Calls a function at a time that may be set again and again. Thread-safe; the function runs on a thread of
// the alarm's own, never twice at once, and may set it. The destructor waits for it.
class Alarm {
 public:
  explicit Alarm(std::function<void()> ring);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  // Rings once at `at`, in place of what was set before; InfiniteFuture: not at all.
  void Set(absl::Time at);

 private:
  void Run();

  const std::function<void()> ring_;

  Mutex mu_;
  absl::Time at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool moved_ ABSL_GUARDED_BY(mu_) = false;  // at_ is another than the thread waits for.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  std::thread thread_;
};

}  // namespace recon
