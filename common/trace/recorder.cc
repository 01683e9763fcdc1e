#include "common/trace/recorder.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <new>

#include "common/base/check.h"
#include "common/base/limits.h"

namespace recon::trace {

namespace internal {
std::atomic<bool> recording{false};
}  // namespace internal

namespace {

constexpr size_t kSpans = limits::kTraceThreadSpansMax;
// What Linux keeps of a thread's name, and the zero behind it.
constexpr size_t kNameBytes = 16;

// Written by the thread that has it, read by the one that drains: each has a count of its own.
class Ring {
 public:
  enum class State { kFree, kTaken, kLeft };

  bool TryTake() {
    State free = State::kFree;
    if (!state_.compare_exchange_strong(free, State::kTaken, std::memory_order_acq_rel)) return false;
    id_ = static_cast<uint32_t>(syscall(SYS_gettid));
    if (pthread_getname_np(pthread_self(), name_.data(), name_.size()) != 0) name_[0] = '\0';
    return true;
  }
  void Leave() {
    const State before = state_.exchange(State::kLeft, std::memory_order_acq_rel);
    RECON_CHECK_EQ(before, State::kTaken, "a thread leaves a ring that is not its own");
  }

  void Push(const Event& event) {
    const uint64_t written = written_.load(std::memory_order_relaxed);
    const uint64_t held = written - read_.load(std::memory_order_acquire);
    RECON_CHECK_LE(held, kSpans);
    if (held == kSpans) {
      lost_.fetch_add(1, std::memory_order_relaxed);
      return;
    }
    events_[written % kSpans] = event;
    written_.store(written + 1, std::memory_order_release);
  }

  // Returns how many were lost.
  template <typename Take>
  uint64_t Drain(const Take& take) {
    const State state = state_.load(std::memory_order_acquire);
    if (state == State::kFree) return 0;
    const uint64_t written = written_.load(std::memory_order_acquire);
    uint64_t read = read_.load(std::memory_order_relaxed);
    RECON_CHECK_LE(read, written);
    if (read < written) {  // Only then is it known who has it.
      const Recording::Thread thread = {id_, name_.data()};
      for (; read < written; ++read) take(thread, events_[read % kSpans]);
      read_.store(read, std::memory_order_release);
    }
    if (state == State::kLeft) state_.store(State::kFree, std::memory_order_release);
    return lost_.exchange(0, std::memory_order_relaxed);
  }

 private:
  std::atomic<State> state_{State::kFree};
  std::atomic<uint64_t> written_{0};
  std::atomic<uint64_t> read_{0};
  std::atomic<uint64_t> lost_{0};
  uint32_t id_ = 0;
  std::array<char, kNameBytes> name_ = {};
  // It lives as long as the process. What was never written to takes no memory of the machine's: making
  // events there would.
  Event* const events_ = static_cast<Event*>(::operator new(kSpans * sizeof(Event)));
};

using Rings = std::array<Ring, limits::kTraceThreadsMax>;

// Made by the first recording; threads may use them until the process is gone.
std::atomic<Rings*> rings{nullptr};
std::atomic<int64_t> deadline_ns{0};
std::atomic<uint64_t> lost_without_ring{0};
std::atomic<bool> taken{false};  // By a Recording.

class ThreadRing {
 public:
  ~ThreadRing() {
    if (ring_ != nullptr) ring_->Leave();
  }
  // Null if all are taken.
  Ring* Get() {
    if (ring_ != nullptr) return ring_;
    for (Ring& ring : *rings.load(std::memory_order_acquire)) {
      if (!ring.TryTake()) continue;
      ring_ = &ring;
      break;
    }
    return ring_;
  }

 private:
  Ring* ring_ = nullptr;
};

thread_local ThreadRing thread_ring;

void Push(const Event& event) {
  if (event.end_ns > deadline_ns.load(std::memory_order_relaxed)) {
    internal::recording.store(false, std::memory_order_relaxed);
    return;
  }
  // The switch is set behind them, and read without an order.
  if (rings.load(std::memory_order_acquire) == nullptr) return;
  if (Ring* const ring = thread_ring.Get(); ring != nullptr) {
    ring->Push(event);
  } else {
    lost_without_ring.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace

void Record(const char* name, int64_t begin_ns, int64_t end_ns, const About& about) {
  Push({name, begin_ns, end_ns, about, /*passive=*/false});
}

void RecordPassive(const char* name, int64_t begin_ns, const About& about) {
  Push({name, begin_ns, MonotonicNanos(), about, /*passive=*/true});
}

std::unique_ptr<Recording> Recording::Begin(int64_t until_ns) {
  if (taken.exchange(true)) return nullptr;
  std::unique_ptr<Recording> recording(new Recording());
  if (rings.load() == nullptr) rings.store(new Rings());
  recording->Drain([](const Thread&, const Event&) {});  // What ended too late for the one before.
  deadline_ns.store(until_ns);
  internal::recording.store(true);
  return recording;
}

Recording::~Recording() {
  Stop();
  RECON_CHECK(taken.exchange(false), "there were two recordings at once");
}

void Recording::Stop() { internal::recording.store(false); }

uint64_t Recording::Drain(const std::function<void(const Thread& thread, const Event& event)>& take) {
  uint64_t lost = lost_without_ring.exchange(0, std::memory_order_relaxed);
  for (Ring& ring : *rings.load()) lost += ring.Drain(take);
  return lost;
}

}  // namespace recon::trace
