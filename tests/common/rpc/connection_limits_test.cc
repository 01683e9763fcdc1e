#include "common/rpc/connection_limits.h"

#include <algorithm>
#include <vector>

#include "catch2/catch.hpp"
#include "common/rpc/connections.h"

namespace recon {
namespace {

std::vector<size_t> Cut(const std::vector<ConnectionView>& connections) {
  ConnectionLimits limits;
  limits.stranger_bytes_max = 100;
  limits.member_bytes_max = 1000;
  limits.strangers_bytes_max = 250;
  std::vector<size_t> cut = WhichToCut(connections, limits);
  std::sort(cut.begin(), cut.end());
  return cut;
}

}  // namespace

TEST_CASE("who has sent much that was not understood is cut, and the largest of many strangers",
          "[connections]") {
  const ConnectionView quiet = {0, false};
  CHECK(Cut({}).empty());
  CHECK(Cut({{100, false}, {1000, true}, quiet}).empty());
  CHECK(Cut({{101, false}, {1001, true}, quiet}) == std::vector<size_t>{0, 1});
  // Strangers together: the largest goes.
  CHECK(Cut({{90, false}, {80, false}, {70, false}, {60, false}, {900, true}}) == std::vector<size_t>{0});
  CHECK(Cut({{90, false}, {80, false}, {90, false}, {60, false}, {900, true}}).size() == 1);
  CHECK(Cut({{99, false}, {98, false}, {97, false}, {96, false}, {95, false}}) ==
        std::vector<size_t>{0, 1, 2});
  // Members are not counted there, however many they are.
  CHECK(Cut({{50, false}, {900, true}, {800, true}, {700, true}, {900, true}}).empty());
}

TEST_CASE("who has many calls open is cut, and the largest of many strangers", "[connections]") {
  const auto cut = [](const std::vector<uint64_t>& strangers) {
    ConnectionLimits limits;
    limits.stranger_calls_max = 10;
    limits.strangers_calls_max = 25;
    std::vector<ConnectionView> connections = {{0, true, 1000}};  // A member.
    for (const uint64_t calls : strangers) connections.push_back({0, false, calls});
    std::vector<size_t> which = WhichToCut(connections, limits);
    std::sort(which.begin(), which.end());
    return which;
  };
  CHECK(cut({}).empty());
  CHECK(cut({10, 10, 5}).empty());
  CHECK(cut({11, 1}) == std::vector<size_t>{1});
  CHECK(cut({9, 10, 7, 1, 1}) == std::vector<size_t>{2});
  CHECK(cut({9, 10, 8, 8, 1}) == std::vector<size_t>{1, 2});
}

TEST_CASE("there are as many connections as a process has descriptors for, and some are left",
          "[connections]") {
  CHECK(LimitsFor(0).connections_max == ConnectionLimits().connections_max);
  CHECK(LimitsFor(1'000'000).connections_max == ConnectionLimits().connections_max);
  CHECK(LimitsFor(1024).connections_max == 1024 - 128);
  CHECK(LimitsFor(256).connections_max == 128);
  CHECK(LimitsFor(256).silent_max == 64);
  CHECK(LimitsFor(128).connections_max == 32);
  CHECK(LimitsFor(64).connections_max == 16);
}

TEST_CASE("a connection is found by its other end until it, and no other one, has ended", "[connections]") {
  Connections connections;
  const auto first = connections.Add("10.0.0.2:1");
  CHECK(connections.Find("10.0.0.2:1") == first);
  CHECK(connections.Find("10.0.0.2:2") == nullptr);
  const auto second = connections.Add("10.0.0.2:1");  // The port is used again.
  connections.Remove("10.0.0.2:1", first.get());
  CHECK(connections.Find("10.0.0.2:1") == second);
  connections.Remove("10.0.0.2:1", second.get());
  CHECK(connections.Find("10.0.0.2:1") == nullptr);
  second->NoteMember();
  CHECK(second->member());
  CHECK(second->understood() == 1);
}

}  // namespace recon
