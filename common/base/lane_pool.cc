#include "common/base/lane_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"

namespace recon {
namespace {

// So that threads seldom want the same one.
constexpr int kLanesPerThread = 4;
// Of one lane before others have their turn: tasks that follow one another use the same memory.
constexpr int kTasksInARow = 8;
// A thread with nothing to do lets others run before it sleeps, and looks again, for so long: where these
// fill its core they have their turn, and where they do not, the next task often comes within that time.
// Waking it would take longer.
constexpr int64_t kYieldNanos = 20'000;
// What Linux keeps of a thread's name.
constexpr size_t kNameBytes = 15;

// The lane whose task this thread runs; null between tasks and on other threads.
thread_local const void* current_lane = nullptr;

unsigned CurrentCore() {
  unsigned core = 0;
  getcpu(&core, nullptr);
  return core;
}

}  // namespace

LanePool::LanePool(const std::string& name, int threads)
    : lanes_(static_cast<size_t>(threads * kLanesPerThread)) {
  RECON_CHECK_GE(threads, 1);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back(
        [this, named = absl::StrCat(name.substr(0, kNameBytes - 4), "-", i)] { Run(named); });
  }
}

LanePool::~LanePool() {
  {
    MutexLock lock(&mu_);
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return behind_ == 0; });
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  MutexLock lock(&mu_);
  RECON_CHECK(ready_.empty(), "a lane still has tasks when the threads of its pool have ended");
}

bool LanePool::IsCurrent(uint32_t item) const {
  return current_lane == &lanes_[static_cast<size_t>(LaneOf(item))];
}

void LanePool::Post(uint32_t item, Lane::Task task) {
  MutexLock lock(&mu_);
  if (!stopping_) Add(item, std::move(task), &Queue::tasks);
}

void LanePool::PostBehind(uint32_t item, Lane::Task task) {
  MutexLock lock(&mu_);
  if (stopping_) return;
  ++behind_;
  Add(item, std::move(task), &Queue::behind);
}

void LanePool::Add(uint32_t item, Lane::Task task, PooledDeque<Lane::Task> Queue::*to) {
  RECON_CHECK(task != nullptr);
  Queue& lane = lanes_[static_cast<size_t>(LaneOf(item))];
  (lane.*to).push_back(std::move(task));
  if (lane.taken) return;
  lane.taken = true;
  ready_.push_back(&lane);
  WakeOne();
}

// The one that fell asleep last has the warmest caches; but rather one that ran on another core than the
// caller: Linux often wakes a thread where it ran before, even if that core is busy and another is not.
void LanePool::WakeOne() {
  if (asleep_.empty()) return;
  const unsigned here = CurrentCore();
  const auto elsewhere = std::find_if(asleep_.rbegin(), asleep_.rend(),
                                      [here](const Sleeper* sleeper) { return sleeper->core != here; });
  const auto chosen = elsewhere == asleep_.rend() ? std::prev(asleep_.end()) : std::prev(elsewhere.base());
  RECON_CHECK(!(*chosen)->woken);
  (*chosen)->woken = true;
  asleep_.erase(chosen);
}

void LanePool::Run(const std::string& name) {
  pthread_setname_np(pthread_self(), name.c_str());
  MutexLock lock(&mu_);
  while (true) {
    while (!ready_.empty()) RunNext();
    if (stopping_) return;
    YieldAwhile();
    if (!ready_.empty()) continue;
    Sleeper self{CurrentCore()};
    asleep_.push_back(&self);
    mu_.Await([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return self.woken || stopping_; });
  }
}

void LanePool::RunNext() {
  Queue* const lane = ready_.front();
  ready_.pop_front();
  RECON_CHECK(lane->taken, "a lane is ready that nobody has put there");
  RECON_CHECK(!lane->empty());
  for (int i = 0; i < kTasksInARow && !lane->empty(); ++i) {
    const bool is_behind = lane->tasks.empty();
    PooledDeque<Lane::Task>& from = is_behind ? lane->behind : lane->tasks;
    Lane::Task task = std::move(from.front());
    from.pop_front();
    mu_.Unlock();
    current_lane = lane;
    task();
    task = nullptr;  // What it holds is the lane's, too.
    current_lane = nullptr;
    mu_.Lock();
    if (!is_behind) continue;
    RECON_CHECK_GT(behind_, 0);
    --behind_;
  }
  if (lane->empty()) {
    lane->taken = false;
  } else {
    ready_.push_back(lane);
  }
}

void LanePool::YieldAwhile() {
  const int64_t until = MonotonicNanos() + kYieldNanos;
  while (ready_.empty() && !stopping_ && MonotonicNanos() < until) {
    mu_.Unlock();
    sched_yield();
    mu_.Lock();
  }
}

}  // namespace recon
