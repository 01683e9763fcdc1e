#include "common/transport/send_window.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/limits.h"

namespace recon {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Requests that enter a window, and those it has admitted, in that order.
struct Requests {
  explicit Requests(SendWindow* to) : window(to) {}

  uint64_t Enter(size_t charge) {
    const uint64_t place = window->NewPlace();
    window->Enter(place, charge, [this, place] { admitted.push_back(place); });
    return place;
  }
  // What was admitted leaves, and others may come.
  void LeaveAll() {
    for (const uint64_t place : std::exchange(admitted, {})) window->Leave(place);
  }

  SendWindow* const window;
  std::vector<uint64_t> admitted;
};

}  // namespace

TEST_CASE("a window admits in the order of asking, as much as it holds", "[transport]") {
  SendWindow window(1, 2);
  Requests requests(&window);
  std::vector<uint64_t> places;
  for (int i = 0; i < 10; ++i) places.push_back(requests.Enter(kMiB));
  CHECK(requests.admitted == std::vector<uint64_t>(places.begin(), places.begin() + 8));
  window.Leave(places[5]);
  CHECK(requests.admitted.size() == 9);
  CHECK(requests.admitted.back() == places[8]);
  window.Leave(places[5]);  // It has left.
  CHECK(requests.admitted.size() == 9);
  // One that waits no longer is passed over.
  const uint64_t last = requests.Enter(kMiB);
  window.Leave(places[9]);
  window.Leave(places[0]);
  CHECK(requests.admitted.back() == last);
  CHECK(requests.admitted.size() == 10);
}

TEST_CASE("a large request does not wait for ever behind small ones, nor for one that is none",
          "[transport]") {
  SendWindow window(1, 2);
  Requests requests(&window);
  const uint64_t small = requests.Enter(kMiB);
  const uint64_t large = requests.Enter(2 * limits::kRequestBytesInFlight);
  const uint64_t after = requests.Enter(kMiB);
  CHECK(requests.admitted == std::vector<uint64_t>{small});
  window.Leave(small);
  CHECK(requests.admitted == std::vector<uint64_t>{small, large});
  window.Leave(large);
  CHECK(requests.admitted == std::vector<uint64_t>{small, large, after});
}

TEST_CASE("with more servers frames are smaller, down to a shard, and the window has two for each of them",
          "[transport]") {
  CHECK(SendWindow(1, 1).frame_bytes() == limits::kFrameTargetBytes);
  CHECK(SendWindow(4, 1).frame_bytes() == limits::kFrameTargetBytesOfAll / 4);
  for (const size_t servers : {16, 100}) {
    SendWindow window(servers, /*connections=*/1);
    CHECK(window.frame_bytes() == limits::kFrameTargetBytesMin);
    Requests requests(&window);
    for (size_t i = 0; i < 3 * servers; ++i) requests.Enter(window.frame_bytes());
    CHECK(requests.admitted.size() == 2 * servers);
  }
  SendWindow many(1, 16);
  Requests requests(&many);
  for (int i = 0; i < 40; ++i) requests.Enter(many.frame_bytes());
  CHECK(requests.admitted.size() == 16);
}

TEST_CASE("a window is small where the server is on the same machine, and smaller the more workers it has",
          "[transport]") {
  SendWindow window(1, 2);
  Requests requests(&window);
  const size_t frame = window.frame_bytes();
  constexpr size_t kAll = limits::kRequestBytesInFlight / limits::kFrameTargetBytes;
  for (size_t i = 0; i < 4 * kAll; ++i) requests.Enter(frame);
  CHECK(requests.admitted.size() == kAll);
  // Nothing enters before enough has left.
  window.SetOneMachine(true);
  requests.LeaveAll();
  CHECK(requests.admitted.size() == 2);
  window.ShareWith(4);  // Not less than that.
  requests.LeaveAll();
  CHECK(requests.admitted.size() == 2);
  // It has moved.
  window.SetOneMachine(false);
  CHECK(requests.admitted.size() == kAll);

  SendWindow over_one_connection(1, 1);
  over_one_connection.SetOneMachine(true);
  Requests few(&over_one_connection);
  for (int i = 0; i < 40; ++i) few.Enter(over_one_connection.frame_bytes());
  CHECK(few.admitted.size() == 2);
  SendWindow over_many_connections(1, 16);
  over_many_connections.SetOneMachine(true);
  Requests many(&over_many_connections);
  for (int i = 0; i < 40; ++i) many.Enter(over_many_connections.frame_bytes());
  CHECK(many.admitted.size() == 6);
  over_many_connections.ShareWith(2);
  many.LeaveAll();
  CHECK(many.admitted.size() == 3);
  over_many_connections.ShareWith(1000);
  many.LeaveAll();
  CHECK(many.admitted.size() == 2);
  // A server that does not say has one.
  over_many_connections.ShareWith(0);
  CHECK(many.admitted.size() == 6);
  // To four servers nothing changes.
  SendWindow four(4, 2);
  four.SetOneMachine(true);
  Requests spread(&four);
  for (int i = 0; i < 40; ++i) spread.Enter(four.frame_bytes());
  CHECK(spread.admitted.size() == limits::kRequestBytesInFlightMin / four.frame_bytes());
}

TEST_CASE("threads that enter and leave at once: each is admitted once, and never too many", "[transport]") {
  SendWindow window(1, 2);
  constexpr int kThreads = 4, kRounds = 2000;
  std::atomic<int> inside{0}, most{0}, admitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRounds; ++i) {
        const uint64_t place = window.NewPlace();
        auto in = std::make_shared<std::atomic<bool>>(false);
        window.Enter(place, 3 * kMiB, [&, in] {
          ++admitted;
          const int now = ++inside;
          int seen = most;
          while (seen < now && !most.compare_exchange_weak(seen, now)) {
          }
          *in = true;
        });
        while (!*in) std::this_thread::yield();
        --inside;
        window.Leave(place);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(admitted == kThreads * kRounds);
  CHECK(most <= 2);
  CHECK(inside == 0);
}

}  // namespace recon
