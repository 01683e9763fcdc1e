#pragma once

#include <deque>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "common/base/mutex.h"

namespace recon {

// One thread that runs tasks in the order they were posted. What only a lane touches needs no lock. Where
// there are many lanes, a LanePool has fewer threads.
//
// Threads: Post() may be called from any thread, the lane's own included.
// Shutdown: the destructor runs what was posted before it, then joins. Tasks posted after it began are
// destroyed unrun.
class Lane {
 public:
  using Task = absl::AnyInvocable<void()>;

  // `name` (at most 15 bytes are kept) is the thread's name in debuggers and top.
  explicit Lane(std::string name);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void Post(Task task);
  // Runs `task` on the lane and returns when it has run. Never call it on the lane itself.
  void RunAndWait(Task task);
  // Whether one of the lane's tasks is what asks: methods that are "lane only" check it.
  bool IsCurrent() const;
  // What the destructor does. Once it has returned no task runs any more. Not on the lane itself; may be
  // called again, by the same thread.
  void Stop();

 private:
  void Run();

  Mutex mu_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::string name_;
  std::thread thread_;
};

}  // namespace recon
