#include "common/base/lane.h"

#include <algorithm>
#include <thread>

#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("a lane runs tasks in the order each thread posted them", "[lane]") {
  constexpr int kThreads = 4;
  constexpr int kTasks = 500;
  std::vector<std::vector<int>> seen(kThreads);
  {
    Lane lane("test");
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kTasks; ++i) lane.Post([&, t, i] { seen[t].push_back(i); });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  for (const auto& numbers : seen) {
    REQUIRE(numbers.size() == kTasks);
    CHECK(std::is_sorted(numbers.begin(), numbers.end()));
  }
}

TEST_CASE("RunAndWait returns after the task and all before it", "[lane]") {
  Lane lane("test");
  int count = 0;
  for (int i = 0; i < 10; ++i) lane.Post([&] { ++count; });
  lane.RunAndWait([&] { ++count; });
  CHECK(count == 11);
}

TEST_CASE("a lane is current for its own tasks alone", "[lane]") {
  Lane lane("test"), other("other");
  CHECK(!lane.IsCurrent());
  bool here = false, there = true;
  lane.RunAndWait([&] { here = lane.IsCurrent(); });
  other.RunAndWait([&] { there = lane.IsCurrent(); });
  CHECK(here);
  CHECK(!there);
}

TEST_CASE("a lane that was stopped has run what was posted, and runs nothing more", "[lane]") {
  Lane lane("test");
  int count = 0;
  for (int i = 0; i < 10; ++i) lane.Post([&] { ++count; });
  lane.Stop();
  CHECK(count == 10);
  lane.Post([&] { ++count; });
  lane.Stop();
  CHECK(count == 10);
}

}  // namespace recon
