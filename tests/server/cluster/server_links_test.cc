#include "server/cluster/server_links.h"

#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/server/cluster/fake_links.h"
#include "tests/server/cluster/small_cluster.h"

namespace recon {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

absl::Time After(int seconds) { return kNow + absl::Seconds(seconds); }

// A head's links to two other servers, which are live.
class Links {
 public:
  Links() : links(kClusterServers, [](uint32_t) {}) {
    links.Start(kNow);
    for (uint32_t place = 1; place < kClusterServers; ++place) {
      ends.push_back(Connect(place));
      links.Assign(place, ClusterAssignment(ClusterRules(0, 1)));
      REQUIRE(links.NoteReady(ends.back().get(), ServerReady()));
    }
    links.BeginEpoch(2);
    REQUIRE(links.Missing(kNow).empty());
  }
  std::shared_ptr<FakeServerLink> Connect(uint32_t place, absl::Time now = kNow) {
    const auto end = std::make_shared<FakeServerLink>();
    links.Connect(place, end, HelloOf(ServerIdOf(place)), now);
    return end;
  }

  ServerLinks links;
  std::vector<std::shared_ptr<FakeServerLink>> ends;
};

}  // namespace

TEST_CASE("a server that has never come, one that was stopped and one that is dead are three things",
          "[server_links]") {
  Links job;
  ServerReport leaving;
  leaving.mutable_leaving()->set_why("SIGTERM");
  REQUIRE(job.links.Note(job.ends[0].get(), leaving, After(10)).ok());
  const ServerLinks::Dropped stopped = job.links.Drop(job.ends[0].get(), After(10));
  CHECK(stopped.place == 1);
  CHECK(stopped.address == "host:101");
  CHECK(stopped.stopped_why == "SIGTERM");
  CHECK(job.links.Drop(job.ends[1].get(), After(20)).stopped_why.empty());
  CHECK(job.links.Missing(After(75)) ==
        "server 1 at host:101, which was stopped in good order 1m5s ago (SIGTERM), and for server 2 at "
        "host:102, "
        "which cannot be reached for 55s");
  const std::vector<ServerStatus> servers = job.links.Status(After(75));
  CHECK(servers[0].state() == SERVER_STOPPED);
  CHECK(servers[1].state() == SERVER_AWAITED);
  ServerLinks anew(kClusterServers, [](uint32_t) {});
  anew.Start(kNow);
  CHECK(anew.Missing(After(12)) ==
        "server 1, which has not come since this head began 12s ago, and for server 2, which has not come "
        "since "
        "this head began 12s ago");
}

TEST_CASE("a server whose connection stands and that says nothing is named", "[server_links]") {
  Links job;
  ServerReport report;
  report.mutable_progress();
  REQUIRE(job.links.Note(job.ends[0].get(), report, After(4)).ok());
  CHECK(job.links.Missing(After(5)) == "server 2 at host:102, silent for 5s");
  REQUIRE(job.links.Note(job.ends[1].get(), report, After(5)).ok());
  CHECK(job.links.Missing(After(6)).empty());
}

TEST_CASE("a server that is back restores its state, and is not missing when it waits for others",
          "[server_links]") {
  Links job;
  for (const auto& end : job.ends) job.links.Drop(end.get(), After(1));
  const auto back = job.Connect(1, After(2));
  job.links.Assign(1, ClusterAssignment(ClusterRules(0, 1)));
  CHECK(
      job.links.Missing(After(3)) ==
      "server 1 at host:101, which restores its state, and for server 2 at host:102, which cannot be reached "
      "for 2s");
  CHECK(job.links.Status(After(3))[0].state() == SERVER_RECOVERING);
  REQUIRE(job.links.NoteReady(back.get(), ServerReady()));
  CHECK(job.links.Missing(After(3)) == "server 2 at host:102, which cannot be reached for 2s");
}

TEST_CASE("a server that is there and has no model to restore is not missing", "[server_links]") {
  ServerLinks links(kClusterServers, [](uint32_t) {});
  links.Start(kNow);
  const auto first = std::make_shared<FakeServerLink>();
  const auto second = std::make_shared<FakeServerLink>();
  links.Connect(1, first, HelloOf(101), kNow);
  links.Connect(2, second, HelloOf(102), kNow);
  CHECK(links.Missing(After(2)).empty());
}

}  // namespace recon
