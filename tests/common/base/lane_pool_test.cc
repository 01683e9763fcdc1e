#include "common/base/lane_pool.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/mutex.h"

namespace recon {

TEST_CASE("a lane of a pool runs one task at a time, in the order each thread posted them", "[lane]") {
  constexpr int kPosting = 3;
  constexpr int kTasks = 400;
  constexpr uint32_t kItems = 17;
  const int threads = GENERATE(1, 2, 5);
  // Of each item, what each posting thread's tasks were: the lane's alone.
  std::vector<std::vector<std::vector<int>>> seen(kItems, std::vector<std::vector<int>>(kPosting));
  {
    LanePool pool("test", threads);
    std::vector<std::unique_ptr<std::atomic<int>>> running;
    for (int i = 0; i < pool.size(); ++i) running.push_back(std::make_unique<std::atomic<int>>(0));
    std::atomic<int> together{0};
    std::vector<std::thread> posting;
    for (int t = 0; t < kPosting; ++t) {
      posting.emplace_back([&, t] {
        for (int i = 0; i < kTasks; ++i) {
          const uint32_t item = static_cast<uint32_t>(i * (t + 1)) % kItems;
          pool.Post(item, [&, t, i, item] {
            std::atomic<int>& others = *running[static_cast<size_t>(pool.LaneOf(item))];
            if (others.fetch_add(1) != 0) ++together;
            seen[item][static_cast<size_t>(t)].push_back(i);
            --others;
          });
        }
      });
    }
    for (std::thread& thread : posting) thread.join();
    // What the tasks refer to has to outlive them.
    std::atomic<int> left{pool.size()};
    for (int lane = 0; lane < pool.size(); ++lane) pool.Post(static_cast<uint32_t>(lane), [&] { --left; });
    while (left > 0) std::this_thread::yield();
    CHECK(together == 0);
  }
  size_t ran = 0;
  for (const auto& item : seen) {
    for (const auto& numbers : item) {
      ran += numbers.size();
      CHECK(std::is_sorted(numbers.begin(), numbers.end()));
    }
  }
  CHECK(ran == size_t{kPosting} * kTasks);
}

TEST_CASE("a lane of a pool waits for no other while a thread has nothing to do", "[lane]") {
  Notification go_on;
  LanePool pool("test", 3);
  pool.Post(0, [&] { go_on.WaitForNotification(); });
  pool.Post(1, [&] { go_on.WaitForNotification(); });
  for (int lane = 2; lane < pool.size(); ++lane) {
    Notification ran;
    pool.Post(static_cast<uint32_t>(lane), [&] { ran.Notify(); });
    ran.WaitForNotification();
  }
  go_on.Notify();
}

TEST_CASE("a lane with many tasks lets the others of its thread run in between", "[lane]") {
  constexpr int kMany = 100;
  std::vector<uint32_t> order;
  {
    LanePool pool("test", 1);
    pool.Post(3, [&] {
      for (int i = 0; i < kMany; ++i) pool.Post(0, [&order] { order.push_back(0); });
      for (const uint32_t lane : {1, 2}) pool.Post(lane, [&order, lane] { order.push_back(lane); });
    });
    Notification all_posted;
    pool.Post(2, [&] { all_posted.Notify(); });
    all_posted.WaitForNotification();
  }
  REQUIRE(order.size() == kMany + 2);
  const auto one = std::find(order.begin(), order.end(), 1);
  const auto two = std::find(order.begin(), order.end(), 2);
  CHECK(std::max(one, two) - order.begin() < kMany / 2);
}

TEST_CASE("what is posted behind a lane's tasks comes after them, and before the next one behind", "[lane]") {
  std::vector<std::string> order;
  {
    LanePool pool("test", 1);
    const auto add = [&order](const char* what) { return [&order, what] { order.emplace_back(what); }; };
    const auto prepare = [&](const char* what, const char* then) {
      return [&, what, then] {
        order.emplace_back(what);
        pool.Post(0, add(then));
      };
    };
    pool.Post(1, [&] {
      pool.PostBehind(0, prepare("prepare a", "a"));
      pool.Post(0, add("x"));
      pool.PostBehind(0, prepare("prepare b", "b"));
      pool.Post(0, add("y"));
    });
    Notification all_posted;
    pool.Post(2, [&] { all_posted.Notify(); });
    all_posted.WaitForNotification();
  }
  CHECK(order == std::vector<std::string>{"x", "y", "prepare a", "a", "prepare b", "b"});
}

TEST_CASE("what is posted behind may post to any lane while the pool ends", "[lane]") {
  constexpr uint32_t kTasks = 100;
  std::atomic<uint32_t> ran{0};
  {
    LanePool pool("test", 2);
    for (uint32_t i = 0; i < kTasks; ++i) {
      pool.PostBehind(i, [&, i] { pool.Post(i + 1, [&ran] { ++ran; }); });
    }
  }
  CHECK(ran == kTasks);
}

TEST_CASE("a pool runs what was posted before it ends", "[lane]") {
  std::atomic<int> ran{0};
  const auto held = std::make_shared<int>(0);
  {
    LanePool pool("test", 2);
    for (uint32_t i = 0; i < 100; ++i) {
      pool.Post(i, [&ran, held] { ++ran; });
    }
  }
  CHECK(ran == 100);
  CHECK(held.use_count() == 1);
}

TEST_CASE("a lane of a pool is current for the tasks of its items alone", "[lane]") {
  LanePool pool("test", 2);
  const auto size = static_cast<uint32_t>(pool.size());
  std::atomic<int> own{0}, others{0}, left{pool.size()};
  Notification done;
  CHECK(!pool.IsCurrent(0));
  for (uint32_t item = 0; item < size; ++item) {
    pool.Post(item, [&, item] {
      own += pool.IsCurrent(item) && pool.IsCurrent(item + size) ? 1 : 0;
      others += pool.IsCurrent(item + 1) ? 1 : 0;
      if (--left == 0) done.Notify();
    });
  }
  done.WaitForNotification();
  CHECK(own == pool.size());
  CHECK(others == 0);
}

}  // namespace recon
