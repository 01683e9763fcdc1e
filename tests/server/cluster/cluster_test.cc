// The head's side of a job's servers, by what servers report and are told.

#include "server/cluster/cluster.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/metrics/metrics.h"
#include "server/durability/log_format.h"
#include "tests/server/cluster/fake_links.h"
#include "tests/server/cluster/head_options.h"
#include "tests/server/cluster/small_cluster.h"

namespace recon {
namespace {

using Link = std::shared_ptr<FakeServerLink>;
const WorkerId kWorker(1);
const Incarnation kProcess(11);

// A synchronous job's head with a model, and one worker. Servers are what a test says.
class ClusterJob {
 public:
  // Tests say how late it is: how long they take themselves does not matter.
  explicit ClusterJob(absl::Duration replace_after = absl::Hours(2))
      : cluster(MakeOptions(replace_after), ServerTable()) {
    Cluster::Events events;
    events.changed = [this] { ++changes; };
    events.save = [this](const ServerTable& given) {
      saved = given;
      return save_fails;
    };
    cluster.Start(&params, &lane, std::move(events));
    REQUIRE(params.DefineModel(SixShards()).ok());
    lane.RunAndWait([this] { cluster.SetModel(SixShards()); });
  }

  Link Join(const ServerHello& hello) {
    const auto link = std::make_shared<FakeServerLink>();
    ServerReport report;
    *report.mutable_hello() = hello;
    Report(link, report);
    return link;
  }
  void Report(const Link& link, const ServerReport& report) {
    cluster.OnReport(link, report);
    lane.RunAndWait([] {});
  }
  void BecomeReady(const Link& link, uint64_t knows_epoch = 0, uint64_t frontier = 0) {
    ServerReport report;
    report.mutable_ready()->set_has_values(true);
    report.mutable_ready()->set_cluster_epoch(knows_epoch);
    report.mutable_ready()->set_frontier_step(frontier);
    Report(link, report);
  }
  void Progress(const Link& link, uint64_t sequence, uint64_t frontier) {
    ServerReport report;
    report.mutable_progress()->set_sequence(sequence);
    report.mutable_progress()->set_frontier_step(frontier);
    Report(link, report);
  }
  // Both places have a server, and the epoch has begun.
  void Begin() {
    first = Join(HelloOf(ServerIdOf(1)));
    second = Join(HelloOf(ServerIdOf(2)));
    BecomeReady(first);
    BecomeReady(second);
    BeginEpoch();
  }
  void BeginEpoch() {
    lane.RunAndWait([this] { cluster.BeginEpoch(++epoch); });
    params.SetClusterEpoch(epoch);
  }
  // The server has gone, and is there again with its data directory.
  Link ComeAgain(const Link& link, uint32_t place, bool with_data) {
    cluster.OnClosed(link);
    const Link again = Join(with_data ? HelloWithData(ServerIdOf(place), place) : HelloOf(ServerIdOf(place)));
    BecomeReady(again);
    BeginEpoch();
    return again;
  }

  void Admit(Incarnation incarnation = kProcess) {
    params.members()->Admit(kWorker, incarnation, 0);
    cluster.Admit(kWorker, incarnation, 0);
    params.members()->Activate(kWorker, params.members()->frontier(), /*resumes=*/true);
  }
  // A server has its parts of the worker's push.
  void Deliver(const Link& link, uint32_t place, uint64_t step, Incarnation incarnation = kProcess) {
    Report(link, Delivered(place, step, incarnation));
  }
  static ServerReport Delivered(uint32_t place, uint64_t step, Incarnation incarnation = kProcess) {
    ServerReport report;
    PushDelivered* push = report.mutable_delivered();
    push->set_worker(kWorker.value());
    push->set_incarnation(incarnation.value());
    push->set_step(step);
    push->set_push_parts(6);
    const std::vector<uint32_t> servers = ServersOfShards();
    for (uint32_t shard = 0; shard < servers.size(); ++shard) {
      if (servers[shard] == place) push->add_shards(shard);
    }
    return report;
  }
  // And the head its own.
  void DeliverHere(uint64_t step) { params.peers()->NoteDelivered(kWorker, kProcess, step, {0, 3}, 6); }

  static Cluster::Options MakeOptions(absl::Duration replace_after) {
    Cluster::Options options;
    options.replace_after = replace_after;
    options.silence_max = absl::Hours(1);
    options.assignment = ClusterAssignment(ClusterRules(0, 1));
    return options;
  }

  int changes = 0;
  ServerTable saved;
  absl::Status save_fails;
  uint64_t epoch = 1;
  Link first;
  Link second;
  Metrics metrics;
  Cluster cluster;
  ParamServer params{HeadParamOptions(&cluster), &metrics};
  Lane lane{"control"};
};

// Steps whose closing a server was told, in order.
std::vector<uint64_t> Closings(const Link& link) {
  std::vector<uint64_t> steps;
  for (const ServerCommand& command : link->sent(ServerCommand::kClose)) {
    steps.push_back(DecodeClosing(command.close())->step);
  }
  return steps;
}

using Steps = std::vector<uint64_t>;

}  // namespace

TEST_CASE("servers get places, restore, and begin an epoch together", "[cluster]") {
  ClusterJob job;
  CHECK(absl::StartsWith(job.cluster.Missing(), "server 1, which has not come since this head began "));
  const Link first = job.Join(HelloOf(101));
  const Link second = job.Join(HelloOf(102));
  REQUIRE(first->sent().size() == 1);
  CHECK(first->sent()[0].assign().server() == 1);
  CHECK_FALSE(first->sent()[0].assign().resume());
  CHECK(second->sent()[0].assign().server() == 2);
  CHECK(job.saved.id_size() == 3);
  CHECK(job.saved.id(2) == 102);
  job.BecomeReady(first, /*knows_epoch=*/7, /*frontier=*/3);
  CHECK(job.cluster.Missing() == "server 2 at host:102, which restores its state");
  CHECK_FALSE(job.cluster.state().complete);
  job.BecomeReady(second, /*knows_epoch=*/5, /*frontier=*/4);
  CHECK(job.changes == 2);
  CHECK(job.cluster.state().complete);
  CHECK_FALSE(job.cluster.state().live);
  CHECK(job.cluster.state().highest_epoch == 7);
  CHECK(job.cluster.state().highest_frontier == 4);
  job.BeginEpoch();
  CHECK(job.cluster.state().live);
  CHECK(first->sent(ServerCommand::kBegin).size() == 1);
  CHECK(job.cluster.Addresses()[1].address() == HelloOf(102).address());
}

TEST_CASE("a place whose table cannot be saved is not given away", "[cluster]") {
  ClusterJob job;
  job.save_fails = absl::UnavailableError("the disk is full");
  const Link link = job.Join(HelloOf(101));
  CHECK(absl::IsUnavailable(link->closed()));
  CHECK(link->sent().empty());
  job.save_fails = absl::OkStatus();
  CHECK(job.Join(HelloOf(102))->sent()[0].assign().server() == 1);
}

TEST_CASE("what a server has delivered counts when it comes again with its data, and only then",
          "[cluster]") {
  const bool with_data = GENERATE(true, false);
  ClusterJob job;
  job.Begin();
  job.Admit();
  job.DeliverHere(0);
  job.Deliver(job.first, 1, 0);
  const Link again = job.ComeAgain(job.first, 1, with_data);
  CHECK(again->sent()[0].assign().resume() == with_data);
  job.Admit();
  job.Deliver(job.second, 2, 0);
  CHECK(job.params.members()->frontier() == (with_data ? 1 : 0));
  if (with_data) return;
  job.Deliver(again, 1, 0);
  CHECK(job.params.members()->frontier() == 1);
}

TEST_CASE("closings are kept for a server until it has them in its log", "[cluster]") {
  ClusterJob job;
  job.Begin();
  job.Admit();
  for (uint64_t step = 0; step < 2; ++step) {
    job.DeliverHere(step);
    job.Deliver(job.first, 1, step);
    job.Deliver(job.second, 2, step);
  }
  CHECK(Closings(job.first) == Steps{0, 1});
  CHECK(Closings(job.second) == Steps{0, 1});
  // One has both in its log, the other none.
  job.Progress(job.first, 10, 2);
  const Link first = job.ComeAgain(job.first, 1, true);
  const Link second = job.ComeAgain(job.second, 2, true);
  CHECK(Closings(first).empty());
  CHECK(Closings(second) == Steps{0, 1});
  // All of it is said before the epoch begins.
  const auto told = second->sent();
  CHECK(told.back().has_begin());
  CHECK(second->sent(ServerCommand::kFrontier).back().frontier().step() == 2);
  job.Progress(second, 12, 1);
  CHECK(Closings(job.ComeAgain(second, 2, true)) == Steps{1});
}

TEST_CASE("a delivery that is said twice counts once", "[cluster]") {
  ClusterJob job;
  job.Begin();
  job.Admit();
  job.DeliverHere(0);
  for (int i = 0; i < 3; ++i) job.Deliver(job.first, 1, 0);
  CHECK(job.params.members()->frontier() == 0);
  job.Deliver(job.second, 2, 0);
  CHECK(job.params.members()->frontier() == 1);
  // Late, when its step is closed.
  job.Deliver(job.first, 1, 0);
  CHECK(Closings(job.first) == Steps{0});
  CHECK(job.params.GetStats().pushes == 1);
}

TEST_CASE("deliveries of another process, or over a link that is over, do not count", "[cluster]") {
  ClusterJob job;
  job.Begin();
  job.Admit();
  job.DeliverHere(0);
  job.Deliver(job.second, 2, 0);
  job.Deliver(job.first, 1, 0, Incarnation(10));
  CHECK(job.params.members()->frontier() == 0);
  // It began anew without its data; what the process before has said comes late.
  const Link before = job.first;
  const Link again = job.ComeAgain(before, 1, /*with_data=*/false);
  job.Admit();
  job.Deliver(before, 1, 0);
  CHECK(job.params.members()->frontier() == 0);
  job.Deliver(again, 1, 0);
  CHECK(job.params.members()->frontier() == 1);
}

TEST_CASE("a snapshot has the parts of its own attempt from all servers", "[cluster]") {
  ClusterJob job;
  job.Begin();
  SnapshotParts* const snapshot = job.cluster.snapshot();
  const auto part_for = [](const Link& link, uint32_t shard) {
    ServerReport report;
    const CutCommand cut = link->sent(ServerCommand::kCut).back().cut();
    report.mutable_part()->set_attempt(cut.attempt());
    report.mutable_part()->set_generation(cut.generation());
    report.mutable_part()->mutable_part()->add_shards()->set_shard(shard);
    return report;
  };
  REQUIRE(snapshot->Begin(4).ok());
  snapshot->SendCut(/*background=*/true);
  CHECK(job.first->sent(ServerCommand::kCut).back().cut().generation() == 4);
  const ServerReport older = part_for(job.first, 1);
  snapshot->GiveUp(absl::AbortedError("given up"));
  CHECK(absl::IsAborted(snapshot->Collect().status()));
  CHECK(absl::IsAborted(snapshot->End()));

  REQUIRE(snapshot->Begin(5).ok());
  snapshot->SendCut(false);
  ServerReport failed = part_for(job.first, 1);
  failed.mutable_part()->set_error("its disk is full");
  job.Report(job.first, failed);
  job.Report(job.second, part_for(job.second, 2));
  job.Report(job.first, older);  // Late: it changes nothing.
  const auto with_error = snapshot->Collect();
  CHECK(with_error.status().message() == "server 1: its disk is full");
  CHECK(snapshot->End().ok());

  REQUIRE(snapshot->Begin(6).ok());
  snapshot->SendCut(false);
  std::thread late([&] {
    job.Report(job.second, part_for(job.second, 2));
    job.Report(job.first, part_for(job.first, 1));
  });
  const auto parts = snapshot->Collect();
  late.join();
  REQUIRE(parts.ok());
  REQUIRE(parts->size() == 2);
  CHECK((*parts)[0].server().id() == 101);
  CHECK((*parts)[1].part().shards(0).shard() == 2);
  CHECK(snapshot->End().ok());
  snapshot->NotePublished();
  CHECK(job.first->sent(ServerCommand::kPublished).size() == 1);
}

TEST_CASE("a snapshot fails when a server goes, and needs all of them", "[cluster]") {
  ClusterJob job;
  CHECK(absl::IsUnavailable(job.cluster.snapshot()->Begin(4)));
  job.Begin();
  REQUIRE(job.cluster.snapshot()->Begin(4).ok());
  job.cluster.snapshot()->SendCut(false);
  std::thread goes([&] { job.cluster.OnClosed(job.second); });
  const auto parts = job.cluster.snapshot()->Collect();
  goes.join();
  CHECK(parts.status().message() == "server 2 has gone");
  CHECK_FALSE(job.cluster.snapshot()->End().ok());
  job.cluster.AwaitInitialValues(kWorker);
  CHECK(absl::IsUnavailable(job.cluster.snapshot()->Begin(5)));
}

TEST_CASE("initial values are there when all servers have those that were asked for last", "[cluster]") {
  ClusterJob job;
  job.Begin();
  job.cluster.AwaitInitialValues(kWorker);
  job.cluster.AwaitInitialValues(kWorker);
  CHECK_FALSE(job.cluster.state().all_have_values);
  CHECK(absl::IsFailedPrecondition(job.cluster.snapshot()->Begin(4)));
  ServerReport taken;
  taken.mutable_initial_values()->set_round(1);
  job.Report(job.first, taken);
  job.Report(job.second, taken);
  CHECK_FALSE(job.cluster.state().all_have_values);
  taken.mutable_initial_values()->set_round(2);
  job.Report(job.first, taken);
  job.Report(job.second, taken);
  CHECK(job.cluster.state().all_have_values);
}

TEST_CASE("a second server with the data of a place that is taken is sent away", "[cluster]") {
  ClusterJob job;
  job.Begin();
  const Link other = job.Join(HelloWithData(555, 1));
  CHECK(absl::IsFailedPrecondition(other->closed()));
  CHECK(absl::StrContains(other->closed().message(), "its place 1 is another server's by now"));
  CHECK(job.cluster.state().live);
}

TEST_CASE("a server without data waits for the place of one that does not come back", "[cluster]") {
  ClusterJob job(/*replace_after=*/absl::Minutes(10));
  job.Begin();
  const Link spare = job.Join(HelloOf(556));
  job.cluster.OnClosed(job.first);
  const absl::Time now = Now();
  job.lane.RunAndWait([&] { job.cluster.Tick(now); });
  CHECK(spare->sent().empty());
  job.lane.RunAndWait([&] { job.cluster.Tick(now + absl::Minutes(20)); });
  REQUIRE(spare->sent().size() == 1);
  CHECK(spare->sent()[0].assign().server() == 1);
  CHECK_FALSE(spare->sent()[0].assign().resume());
  CHECK(job.saved.id(1) == 556);
  // Whose place it was finds that out when it is back.
  CHECK(absl::IsFailedPrecondition(job.Join(HelloWithData(ServerIdOf(1), 1))->closed()));
}

TEST_CASE("a server that waits is told of with whose place it takes, when, and what is lost", "[cluster]") {
  ClusterJob job(/*replace_after=*/absl::Hours(1));
  job.Begin();
  job.Progress(job.first, 30, 0);
  job.Join(HelloOf(556));
  CHECK(job.cluster.Missing().empty());
  job.cluster.OnClosed(job.first);
  const auto says = [&](const std::string& what) {
    const std::string missing = job.cluster.Missing();
    INFO(missing);
    CHECK(absl::StartsWith(missing, "server 1 at host:101, which cannot be reached for "));
    CHECK(absl::StrContains(missing, "; host:556 takes the place of server 1 in "));
    CHECK(absl::EndsWith(missing, ", from the newest snapshot" + what));
  };
  SECTION("where no snapshot is known") { says(""); }
  SECTION("since the snapshot that a restart went on from") {
    Manifest restored;
    for (const uint64_t sequence : {9, 18, 7}) restored.add_servers()->set_sequence(sequence);
    job.cluster.snapshot()->NoteRestored(restored);
    says(", without what its log has beyond that: 12 records when it was last heard, and what came since");
  }
  SECTION("nothing, when it is all in a snapshot") {
    Manifest restored;
    for (const uint64_t sequence : {9, 31, 7}) restored.add_servers()->set_sequence(sequence);
    job.cluster.snapshot()->NoteRestored(restored);
    says(", without what its log has beyond that: 0 records when it was last heard, and what came since");
  }
}

TEST_CASE("a server that says nothing is given up, and its place given to one that waits", "[cluster]") {
  ClusterJob job;
  job.Begin();
  const absl::Time now = Now();
  job.lane.RunAndWait([&] { job.cluster.Tick(now + absl::Minutes(30)); });
  CHECK(job.cluster.state().live);
  job.lane.RunAndWait([&] { job.cluster.Tick(now + absl::Minutes(90)); });
  CHECK(absl::IsUnavailable(job.first->closed()));
  CHECK(absl::StartsWith(job.cluster.Missing(), "server 1 at host:101, which cannot be reached for "));
  CHECK(
      absl::StrContains(job.cluster.Missing(), "and for server 2 at host:102, which cannot be reached for "));
}

TEST_CASE("all servers, those without a place, too, are told what the job waits for", "[cluster]") {
  ClusterJob job;
  job.Begin();
  const Link spare = job.Join(HelloOf(556));
  job.cluster.TellWaits("the job has not moved");
  for (const Link& link : {job.first, job.second, spare}) {
    const auto told = link->sent(ServerCommand::kWaits);
    REQUIRE(told.size() == 1);
    CHECK(told[0].waits().waits_for() == "the job has not moved");
  }
}

TEST_CASE("a report that cannot be ends its server's link, and nothing else", "[cluster]") {
  ClusterJob job;
  job.Begin();
  job.Admit();
  job.DeliverHere(0);
  job.Progress(job.first, 10, 0);
  ServerReport report = ClusterJob::Delivered(1, 0);
  std::string said;
  SECTION("of a shard that is none") {
    report.mutable_delivered()->add_shards(6);
    said = "shard 6, the model has 6";
  }
  SECTION("of another server's shard") {
    report.mutable_delivered()->add_shards(2);
    said = "shard 2, which server 2 has";
  }
  SECTION("of a push without parts") {
    report.mutable_delivered()->set_push_parts(0);
    said = "a push of 0 parts";
  }
  SECTION("of a sequence that goes back") {
    report.mutable_progress()->set_sequence(9);
    said = "goes back from 10 to 9";
  }
  SECTION("of an epoch that no job comes to") {
    report.mutable_ready()->set_cluster_epoch(limits::kClusterEpochMax + 1);
    said = "at cluster epoch 16777216";
  }
  SECTION("of who it is, once more") {
    *report.mutable_hello() = HelloOf(557);
    said = "twice who it is";
  }
  SECTION("of a part with another server's shard") {
    report.mutable_part()->mutable_part()->add_shards()->set_shard(2);
    said = "a snapshot's part of shard 2";
  }
  job.Report(job.first, report);
  CHECK(absl::IsInvalidArgument(job.first->closed()));
  INFO(job.first->closed());
  CHECK(absl::StrContains(job.first->closed().message(), said));
  CHECK(absl::StartsWith(job.cluster.Missing(), "server 1 at host:101, which cannot be reached for "));
  CHECK(job.second->closed().ok());
  CHECK(job.cluster.state().highest_epoch == 0);
  // Nothing of it counts: the step waits for that server's parts.
  job.Deliver(job.second, 2, 0);
  CHECK(job.params.members()->frontier() == 0);
  const Link again = job.ComeAgain(job.first, 1, true);
  job.Admit();
  job.Deliver(again, 1, 0);
  CHECK(job.params.members()->frontier() == 1);
}

}  // namespace recon
