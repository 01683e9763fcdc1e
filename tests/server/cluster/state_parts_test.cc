// What the head tells its servers of the workers' state, where workers have the optimizer.

#include "server/cluster/state_parts.h"

#include <memory>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "common/metrics/metrics.h"
#include "server/cluster/cluster.h"
#include "tests/server/cluster/fake_links.h"
#include "tests/server/cluster/head_options.h"
#include "tests/server/cluster/small_cluster.h"

namespace recon {
namespace {

using Link = std::shared_ptr<FakeServerLink>;
using Kind = ServerCommand::CommandCase;

// A head, and servers that are what a test says.
struct Servers {
  Servers() : cluster(MakeOptions(), ServerTable()) {
    Cluster::Events events;
    events.changed = [] {};
    events.save = [](const ServerTable&) { return absl::OkStatus(); };
    cluster.Start(&params, &lane, std::move(events));
    REQUIRE(params.DefineModel(SixShards()).ok());
    lane.RunAndWait([this] { cluster.SetModel(SixShards()); });
    first = Come(HelloOf(ServerIdOf(1)), 0);
    second = Come(HelloOf(ServerIdOf(2)), 0);
    BeginEpoch();
  }
  Link Come(const ServerHello& hello, uint64_t state_version) {
    auto link = std::make_shared<FakeServerLink>();
    ServerReport report;
    *report.mutable_hello() = hello;
    Report(link, report);
    report.mutable_ready()->set_has_values(true);
    report.mutable_ready()->set_state_version(state_version);
    Report(link, report);
    return link;
  }
  void Report(const Link& link, const ServerReport& report) {
    cluster.OnReport(link, report);
    lane.RunAndWait([] {});
  }
  void BeginEpoch() {
    lane.RunAndWait([this] { cluster.BeginEpoch(++epoch); });
  }
  void Commit(uint64_t upload) { REQUIRE(WorkersStateOf(&params)->CommitState(upload).ok()); }
  void Cut() {
    Notification done;
    params.Cut([&done](const StateCut&) { done.Notify(); },
               [this] { cluster.snapshot()->SendCut(/*background=*/false); });
    done.WaitForNotification();
  }
  std::vector<uint64_t> Versions() const {
    std::vector<uint64_t> versions;
    for (const PlaceState& place : cluster.state().places) versions.push_back(place.state_version);
    return versions;
  }

  static Cluster::Options MakeOptions() {
    Cluster::Options options;
    options.silence_max = absl::Hours(1);
    options.assignment = ClusterAssignment(ClusterRules(0, 1));
    return options;
  }

  uint64_t epoch = 1;
  Link first;
  Link second;
  Metrics metrics;
  Cluster cluster;
  ParamServer params{HeadParamOptions(&cluster), &metrics};
  Lane lane{"control"};
};

}  // namespace

TEST_CASE("servers stage an upload, and commit it at one place among cuts", "[state_parts]") {
  Servers servers;
  std::vector<std::pair<uint32_t, uint64_t>> staged;
  servers.cluster.workers_state()->Await(
      WorkerId(1), 20, [&staged](uint32_t place, uint64_t step) { staged.emplace_back(place, step); });
  CHECK(servers.first->sent().back().await_state().upload() == 20);
  CHECK(servers.second->sent().back().await_state().worker() == 1);
  ServerReport report;
  report.mutable_staged()->set_upload(19);  // Of an earlier question.
  report.mutable_staged()->set_step(7);
  servers.Report(servers.second, report);
  CHECK(staged.empty());
  report.mutable_staged()->set_upload(20);
  servers.Report(servers.second, report);
  CHECK(staged == decltype(staged){{2, 7}});

  servers.Cut();
  servers.Commit(20);
  servers.Cut();
  std::vector<Kind> kinds;
  for (const ServerCommand& command : servers.first->sent()) kinds.push_back(command.command_case());
  REQUIRE(kinds.size() >= 3);
  CHECK(std::vector<Kind>(kinds.end() - 3, kinds.end()) ==
        std::vector<Kind>{Kind::kCut, Kind::kCommitState, Kind::kCut});
}

TEST_CASE("the head knows which state of the workers each server has", "[state_parts]") {
  Servers servers;
  servers.Commit(20);
  CHECK(servers.Versions() == std::vector<uint64_t>{20, 20});
  // It comes again with that of its snapshot; what is committed meanwhile it does not hear.
  servers.cluster.OnClosed(servers.first);
  servers.Commit(21);
  const Link again = servers.Come(HelloWithData(ServerIdOf(1), 1), 19);
  CHECK(servers.Versions() == std::vector<uint64_t>{19, 21});
  servers.BeginEpoch();
  servers.cluster.workers_state()->Restore(/*generation=*/4, 22);
  CHECK(servers.Versions() == std::vector<uint64_t>{22, 22});
  CHECK(again->sent().back().restore_state().generation() == 4);
  CHECK(again->sent(Kind::kCommitState).empty());
}

}  // namespace recon
