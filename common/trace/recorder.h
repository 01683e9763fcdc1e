#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/base/clock.h"

// What the threads of this process do, as spans of time, while somebody asks for it (proto/trace.proto). Off,
// a span costs one relaxed load; on, two readings of the clock and 56 bytes in a ring of its thread's own.
//
// Threads: spans may be recorded on any thread; they take no lock and no memory of the heap. Each thread has
// a ring from its first span on until it ends. What does not fit is counted, and lost.
namespace recon::trace {

namespace internal {
extern std::atomic<bool> recording;
}  // namespace internal

// Whether spans are recorded.
inline bool On() { return internal::recording.load(std::memory_order_relaxed); }

// The push, and the frame of it, that a span is about: both sides of a connection say the same.
struct About {
  uint32_t worker = 0;  // Its number plus 1; 0: the span is about no push.
  uint64_t step = 0;
  uint32_t shard = 0;  // The frame's first, plus 1; 0: all of the push.

  static About Push(uint32_t worker, uint64_t step) { return {worker + 1, step, 0}; }
  static About Frame(uint32_t worker, uint64_t step, uint32_t shard) { return {worker + 1, step, shard + 1}; }
};

struct Event {
  const char* name;  // Lives as long as the process.
  int64_t begin_ns;  // MonotonicNanos().
  int64_t end_ns;
  About about;
  bool passive;  // Not what the thread did: something waited, or was under way.
};

// A span of this thread's time. `name` lives as long as the process (span_names.h).
void Record(const char* name, int64_t begin_ns, int64_t end_ns, const About& about);
// From then until now something waited or was under way, whatever this thread did.
void RecordPassive(const char* name, int64_t begin_ns, const About& about);

// MonotonicNanos() at a time that Now() has given.
inline int64_t NanosAt(absl::Time time) { return MonotonicNanos() - absl::ToInt64Nanoseconds(Now() - time); }

// What this thread does for as long as it lives.
class Span {
 public:
  explicit Span(const char* name, const About& about = {})
      : name_(On() ? name : nullptr), begin_ns_(name_ != nullptr ? MonotonicNanos() : 0), about_(about) {}
  ~Span() {
    if (name_ != nullptr) Record(name_, begin_ns_, MonotonicNanos(), about_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const char* const name_;
  const int64_t begin_ns_;
  const About about_;
};

// Spans are recorded for as long as it lives, but not beyond its deadline: whoever began it may be stuck.
//
// Threads: one at a time.
class Recording {
 public:
  struct Thread {
    uint32_t id = 0;  // The operating system's.
    std::string name;
  };

  // Null if this process records already. `deadline_ns` is a MonotonicNanos().
  static std::unique_ptr<Recording> Begin(int64_t deadline_ns);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Nothing more is recorded, but for spans that end just now.
  void Stop();
  // Takes what was recorded since the last call, of each thread in the order in which its spans have ended.
  // Returns how many were lost since.
  uint64_t Drain(const std::function<void(const Thread& thread, const Event& event)>& take);

 private:
  Recording() = default;
};

}  // namespace recon::trace
