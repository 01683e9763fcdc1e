#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/lane.h"
#include "common/base/mutex.h"
#include "common/base/pool_allocator.h"

namespace recon {

// Lanes that share a few threads. Each runs its tasks one at a time, in the order in which they were posted,
// on whatever thread has nothing to do: what only a lane touches needs no lock, and no lane waits while a
// thread sleeps. A lane that has a lot to do goes behind the others after a few tasks.
//
// Threads: Post() and PostBehind() may be called from any thread, the pool's own included. A task that blocks
// keeps one of them.
// Shutdown: the destructor runs what was posted before it, with what tasks of PostBehind() post in turn, then
// joins. Tasks posted later are destroyed unrun.
class LanePool {
 public:
  // At least one thread. `name` (at most 11 bytes are kept) is theirs, with a number.
  LanePool(const std::string& name, int threads);
  ~LanePool();
  LanePool(const LanePool&) = delete;
  LanePool& operator=(const LanePool&) = delete;

  // Several for each thread.
  int size() const { return static_cast<int>(lanes_.size()); }
  // Item i always runs on lane i modulo the number of lanes.
  int LaneOf(uint32_t item) const { return static_cast<int>(item % lanes_.size()); }
  void Post(uint32_t item, Lane::Task task);
  // Behind all that is posted to the lane until it runs: preparations of tasks, each followed by its own.
  void PostBehind(uint32_t item, Lane::Task task);
  // Whether a task of the item's lane is what asks: what is "lane only" checks it.
  bool IsCurrent(uint32_t item) const;

 private:
  struct Queue {
    PooledDeque<Lane::Task> tasks, behind;
    bool taken = false;  // In `ready_`, or a thread runs its task.

    bool empty() const { return tasks.empty() && behind.empty(); }
  };
  // A thread with nothing to do.
  struct Sleeper {
    unsigned core;
    bool woken = false;
  };

  void Add(uint32_t item, Lane::Task task, PooledDeque<Lane::Task> Queue::*to)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WakeOne() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Run(const std::string& name);
  void RunNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void YieldAwhile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  std::deque<Queue> lanes_;  // Its size does not change; what is in it is guarded by `mu_`.
  PooledDeque<Queue*> ready_ ABSL_GUARDED_BY(mu_);
  size_t behind_ ABSL_GUARDED_BY(mu_) = 0;             // PostBehind()'s tasks that have not ended.
  std::vector<Sleeper*> asleep_ ABSL_GUARDED_BY(mu_);  // The last one fell asleep last.
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace recon
