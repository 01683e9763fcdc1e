#include "common/base/mutex.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/clock.h"

namespace recon {
namespace {

struct Counter {
  Mutex mu;
  int value ABSL_GUARDED_BY(mu) = 0;
  int waiting ABSL_GUARDED_BY(mu) = 0;

  void Add() {
    MutexLock lock(&mu);
    ++value;
  }
};

TEST_CASE("those who wait go on when what they wait for holds, each by itself", "[mutex]") {
  Counter counter;
  constexpr int kThreads = 4, kRounds = 200;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {  // They take turns.
      for (int round = 0; round < kRounds; ++round) {
        MutexLock lock(&counter.mu);
        counter.mu.Await([&] { return counter.value == round * kThreads + i; });
        ++counter.value;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(&counter.mu);
  CHECK(counter.value == kThreads * kRounds);
}

TEST_CASE("nobody is woken for what he does not wait for", "[mutex]") {
  Counter counter;
  int looked = 0;
  std::thread waiter([&] {
    const std::thread::id self = std::this_thread::get_id();
    MutexLock lock(&counter.mu);
    ++counter.waiting;
    counter.mu.Await([&] {
      if (std::this_thread::get_id() == self) ++looked;
      return counter.value == 1000;
    });
  });
  {
    MutexLock lock(&counter.mu);
    counter.mu.Await([&] { return counter.waiting == 1; });
  }
  for (int i = 0; i < 1000; ++i) counter.Add();
  waiter.join();
  CHECK(looked <= 10);  // Twice, and when the system wakes it for nothing.
}

TEST_CASE("a wait ends with its time, and says whether its condition holds", "[mutex]") {
  Counter counter;
  const absl::Time start = Now();
  {
    MutexLock lock(&counter.mu);
    CHECK_FALSE(counter.mu.AwaitFor(absl::Milliseconds(20), [&] { return counter.value > 0; }));
  }
  CHECK(Now() - start >= absl::Milliseconds(19));
  std::thread other([&] { counter.Add(); });
  {
    MutexLock lock(&counter.mu);
    CHECK(counter.mu.AwaitFor(absl::Minutes(1), [&] { return counter.value > 0; }));
    CHECK(counter.mu.AwaitFor(absl::ZeroDuration(), [&] { return counter.value > 0; }));
  }
  other.join();
}

TEST_CASE("waits that end early leave the others waiting", "[mutex]") {
  Counter counter;
  std::atomic<int> late{0}, went_on{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      MutexLock lock(&counter.mu);
      const auto done = [&] { return counter.value > 0; };
      if (i % 2 == 0) {
        late += counter.mu.AwaitFor(absl::Milliseconds(i), done) ? 0 : 1;
      } else {
        counter.mu.Await(done);
        ++went_on;
      }
      ++counter.waiting;
    });
  }
  {
    MutexLock lock(&counter.mu);
    counter.mu.Await([&] { return counter.waiting == 4; });
  }
  CHECK(late == 4);
  CHECK(went_on == 0);
  counter.Add();
  for (std::thread& thread : threads) thread.join();
  CHECK(went_on == 4);
}

TEST_CASE("who waited may destroy the mutex", "[mutex]") {
  for (int i = 0; i < 500; ++i) {
    auto counter = std::make_unique<Counter>();
    std::thread other([raw = counter.get()] { raw->Add(); });
    {
      MutexLock lock(&counter->mu);
      counter->mu.Await([&] { return counter->value == 1; });
    }
    counter = nullptr;
    other.join();
  }
}

}  // namespace
}  // namespace recon
