// What a server does with what its head says, without processes: its links are a test's.

#include "server/process/joined_server.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "common/metrics/metrics.h"
#include "server/durability/log_format.h"
#include "server/process/place_recovery.h"
#include "server/recovery/state_recovery.h"
#include "tests/server/cluster/fake_links.h"
#include "tests/server/cluster/killable_store.h"
#include "tests/server/cluster/small_cluster.h"

namespace recon {
namespace {

const WorkerId kWorker(1);
const Incarnation kProcess(11);

// A server of a synchronous job, and its head as a test plays it. All its parameters are zero.
class Joined final : private ShardHost {
 public:
  Joined() : files_(StoreOfZeros()), store_(files_.get()), server(this) {}
  ~Joined() override {
    server.Stop();
    if (thread_.joinable()) thread_.join();
    if (params_ != nullptr) params_->BeginDrain();
    parts_ = nullptr;
  }

  // A link to a head that says who it is, from now on.
  std::shared_ptr<FakeHeadLink> Connect() {
    const auto link = std::make_shared<FakeHeadLink>();
    if (thread_.joinable()) thread_.join();
    thread_ = std::thread([this, link] { ended_ = server.Follow(link); });
    link->AwaitReport(ServerReport::kHello);
    return link;
  }
  // The link ends; why, as Follow() says.
  absl::Status End(const std::shared_ptr<FakeHeadLink>& link, const absl::Status& why) {
    link->End(why);
    thread_.join();
    return ended_;
  }
  // The place is taken up, and the epoch has begun.
  std::shared_ptr<FakeHeadLink> Begin() {
    const auto link = Connect();
    link->Say(AssignCommand());
    link->AwaitReport(ServerReport::kReady);
    ServerCommand begin;
    begin.mutable_begin()->set_cluster_epoch(3);
    link->Say(begin);
    return link;
  }
  // What was said before is carried out when this returns.
  static void Settle(const std::shared_ptr<FakeHeadLink>& link) {
    const size_t before = link->Count(ServerReport::kReady);
    link->Say(AssignCommand());
    link->AwaitReport(ServerReport::kReady, before);
  }
  static ServerCommand AssignCommand(uint32_t quorum = 0) {
    ServerCommand command;
    *command.mutable_assign() = ClusterAssignment(ClusterRules(0, 1));
    command.mutable_assign()->set_server(1);
    *command.mutable_assign()->mutable_model() = SixShards();
    command.mutable_assign()->set_quorum(quorum);
    return command;
  }

  ParamServer* params() const { return params_.get(); }
  int times_taken_up = 0;

 private:
  ServerHello Hello() const override { return HelloOf(ServerIdOf(1)); }
  absl::StatusOr<RecoveredPlace> TakeUp(const Assignment& assignment) override {
    ++times_taken_up;
    RECON_ASSIGN_OR_RETURN(ParamServer::Options options, PlaceOptions(assignment));
    options.apply_threads = 1;
    options.report_delivery = [this](WorkerId worker, Incarnation incarnation, uint64_t step,
                                     absl::Span<const uint32_t> shards, uint32_t push_parts) {
      server.ReportDelivery(worker, incarnation, step, shards, push_parts);
    };
    params_ = std::make_unique<ParamServer>(options, &metrics_);
    RECON_RETURN_IF_ERROR(params_->DefineModel(assignment.model()));
    parts_ = std::make_unique<PartWriter>(
        params_.get(), std::make_unique<SnapshotWriter>(&store_, SnapshotWriter::Options()), 1.0,
        [this](ServerReport report) { server.Report(std::move(report)); });
    const RecoveryTarget target{params_.get(), &store_, &log_files_, "/log", &metrics_};
    RECON_RETURN_IF_ERROR(log_files_.CreateDirectories("/log"));
    return RecoverPlace(assignment, "/snapshots", /*synced=*/false, /*lost_at=*/0, target, parts_.get());
  }
  ParamServer* accepting() const override { return params_.get(); }
  PartWriter* parts() const override { return parts_.get(); }
  absl::Status RestoreState(const recon::RestoreState& command) override {
    return RestoreWorkersState(params_.get(), &store_, Generation(command.generation()), command.upload());
  }
  void FollowTrace(const TraceCommand&) override {}
  absl::StatusOr<LoggedWork> CountBeyond(uint64_t sequence) override {
    return CountWork(&log_files_, "/log", sequence + 1, params_->position().sequence);
  }

  const std::unique_ptr<FaultyFileSystem> files_;
  FaultyFileSystem log_files_;
  Metrics metrics_;
  KillableStore store_;

 public:
  JoinedServer server;

 private:
  std::unique_ptr<ParamServer> params_;
  std::unique_ptr<PartWriter> parts_;
  absl::Status ended_;
  std::thread thread_;
};

ServerCommand CloseCommand(uint64_t step) {
  ServerCommand command;
  command.set_close(EncodeClosing({step, {1, 4}, {{kWorker, kProcess}}}));
  return command;
}
ServerCommand FrontierCommand(uint64_t step) {
  ServerCommand command;
  command.mutable_frontier()->set_step(step);
  command.mutable_frontier()->set_anyone_active(true);
  return command;
}
ServerCommand AdmitCommand() {
  ServerCommand command;
  command.mutable_admit()->set_worker(kWorker.value());
  command.mutable_admit()->set_incarnation(kProcess.value());
  return command;
}

}  // namespace

TEST_CASE("a server says who it is before anything else, and takes up its place once", "[joined_server]") {
  Joined joined;
  joined.server.ReportProgress();  // To nobody.
  const auto link = joined.Begin();
  CHECK(link->reports()[0].hello().server_id() == ServerIdOf(1));
  CHECK(link->reports()[1].ready().has_values());
  CHECK(absl::IsUnavailable(joined.End(link, absl::UnavailableError("the head is gone"))));
  CHECK(joined.params()->rules().cluster_epoch == 3);
  // Another head, or the same: it is ready at once, and says what it knows.
  const auto again = joined.Begin();
  CHECK(joined.times_taken_up == 1);
  CHECK(again->AwaitReport(ServerReport::kReady).ready().cluster_epoch() == 3);
  CHECK(joined.server.failure().ok());
  CHECK(absl::IsUnavailable(joined.End(again, absl::OkStatus())));
}

TEST_CASE("a server reports what it has of a push, and closes the step when the head does",
          "[joined_server]") {
  Joined joined;
  const auto link = joined.Begin();
  link->Say(AdmitCommand());
  Joined::Settle(link);
  Notification done;
  absl::Status answered;
  joined.params()->Handle(
      FrameFor(1, FrameKind::kPushPull, kWorker, kProcess, 3, 0, 5), Now(), [] {},
      [&](const absl::StatusOr<ByteChain>& reply) {
        answered = reply.status();
        done.Notify();
      },
      {kProcess});
  const PushDelivered delivered = link->AwaitReport(ServerReport::kDelivered).delivered();
  CHECK(delivered.worker() == kWorker.value());
  CHECK(delivered.incarnation() == kProcess.value());
  CHECK(delivered.push_parts() == 6);
  CHECK(delivered.shards_size() == 2);
  CHECK_FALSE(done.HasBeenNotified());
  link->Say(CloseCommand(0));
  done.WaitForNotification();
  CHECK(answered == absl::OkStatus());
  // What it has already changes nothing, however often it is said.
  link->Say(CloseCommand(0));
  link->Say(FrontierCommand(4));
  link->Say(FrontierCommand(2));
  Joined::Settle(link);
  CHECK(absl::IsUnavailable(joined.End(link, absl::OkStatus())));
  CHECK(joined.params()->position().sequence == 2);
  CHECK(joined.params()->members()->frontier() == 4);
  CHECK(joined.server.failure().ok());
}

TEST_CASE("a server takes what its only worker sends at once if the job has a quorum, also later",
          "[joined_server]") {
  std::atomic<int> taken = 0;
  Joined joined;
  const auto link = joined.Begin();
  link->Say(AdmitCommand());
  Joined::Settle(link);
  const auto send = [&](uint64_t step) {
    joined.params()->Handle(
        FrameFor(1, FrameKind::kPushPull, kWorker, kProcess, 3, step, 5), Now(), [&] { ++taken; },
        [](const absl::StatusOr<ByteChain>&) {}, {kProcess});
    link->AwaitReport(ServerReport::kDelivered, step);
  };
  send(0);
  CHECK(taken == 0);
  link->Say(CloseCommand(0));
  link->Say(FrontierCommand(1));
  // The head has begun anew, with other flags.
  link->Say(Joined::AssignCommand(/*quorum=*/3));
  link->AwaitReport(ServerReport::kReady, 2);
  send(1);
  CHECK(taken == 1);
}

TEST_CASE("a command that cannot be carried out ends the server with its reason", "[joined_server]") {
  Joined joined;
  ServerCommand command;
  absl::StatusCode code = absl::StatusCode::kInternal;
  std::shared_ptr<FakeHeadLink> link;
  SECTION("before a place") {
    link = joined.Connect();
    command = CloseCommand(0);
  }
  SECTION("a place that is none") {
    link = joined.Connect();
    command = Joined::AssignCommand();
    command.mutable_assign()->set_server(kClusterServers);
    code = absl::StatusCode::kInvalidArgument;
  }
  SECTION("a closing that is none") {
    link = joined.Begin();
    command.set_close("not a closing");
    code = DecodeClosing("not a closing").status().code();
  }
  SECTION("one that it does not know") {
    link = joined.Begin();
    code = absl::StatusCode::kUnimplemented;
  }
  link->Say(command);
  CHECK_FALSE(joined.End(link, absl::UnavailableError("over")).ok());
  INFO(joined.server.failure());
  CHECK(joined.server.failure().code() == code);
}

TEST_CASE("a server writes its part where the head cuts", "[joined_server]") {
  Joined joined;
  const auto link = joined.Begin();
  ServerCommand cut;
  cut.mutable_cut()->set_generation(2);
  cut.mutable_cut()->set_attempt(99);
  link->Say(cut);
  const SnapshotPart part = link->AwaitReport(ServerReport::kPart).part();
  CHECK(part.error().empty());
  CHECK(part.attempt() == 99);
  CHECK(part.generation() == 2);
  REQUIRE(part.part().shards_size() == 2);
  CHECK(part.part().shards(1).shard() == 4);
  // Of an attempt that is not its last one it has nothing.
  ServerCommand published;
  published.set_published(98);
  link->Say(published);
  CHECK(absl::IsUnavailable(joined.End(link, absl::OkStatus())));
  CHECK(joined.server.failure().ok());
}

TEST_CASE("a server has the state of the workers that its head says", "[joined_server]") {
  Joined joined;
  const auto link = joined.Begin();
  const auto version = [&link] {
    const size_t before = link->Count(ServerReport::kReady);
    link->Say(Joined::AssignCommand());
    return link->AwaitReport(ServerReport::kReady, before).ready().state_version();
  };
  CHECK(version() == 0);
  ServerCommand command;
  command.set_commit_state(20);  // It has no part of it.
  link->Say(command);
  CHECK(version() == 20);
  command.mutable_restore_state()->set_generation(1);
  command.mutable_restore_state()->set_upload(21);
  link->Say(command);
  CHECK(version() == 21);
  command.mutable_restore_state()->set_generation(9);
  link->Say(command);
  CHECK_FALSE(joined.End(link, absl::UnavailableError("over")).ok());
  CHECK(absl::IsNotFound(joined.server.failure()));
}

TEST_CASE("a server hears that the job drains, and that it is done", "[joined_server]") {
  Joined joined;
  const auto link = joined.Begin();
  ServerCommand drain;
  drain.mutable_drain();
  link->Say(drain);
  link->AwaitReport(ServerReport::kDrained);
  CHECK_FALSE(joined.server.done());
  ServerCommand shutdown;
  shutdown.mutable_shutdown();
  link->Say(shutdown);
  CHECK(absl::IsUnavailable(joined.End(link, absl::OkStatus())));
  CHECK(joined.server.done());
  CHECK(joined.server.failure().ok());
  CHECK_FALSE(joined.server.begins_anew());
}

TEST_CASE("a server begins anew when its head has other settings, and when it has drained in vain",
          "[joined_server]") {
  Joined joined;
  const auto link = joined.Begin();
  SECTION("other settings") {
    ServerCommand command = Joined::AssignCommand();
    command.mutable_assign()->set_durability("sync");
    link->Say(command);
  }
  SECTION("drained, and the head has gone") {
    link->Say(Joined::AssignCommand());
    CHECK_FALSE(joined.server.begins_anew());
    ServerCommand drain;
    drain.mutable_drain();
    link->Say(drain);
    link->AwaitReport(ServerReport::kDrained);
  }
  CHECK_FALSE(joined.End(link, absl::UnavailableError("over")).ok());
  CHECK(joined.server.begins_anew());
  CHECK(joined.server.failure().ok());
  CHECK(joined.times_taken_up == 1);
}

TEST_CASE("a server knows what its head says that the job waits for, before it has a place, too",
          "[joined_server]") {
  Joined joined;
  const absl::Time begin = joined.server.heard_at();
  const auto link = joined.Connect();
  ServerCommand waits;
  waits.mutable_waits()->set_waits_for("the job has not begun for 12s");
  link->Say(waits);
  CHECK(absl::IsUnavailable(joined.End(link, absl::OkStatus())));
  CHECK(joined.server.failure().ok());
  CHECK(joined.server.waits_for() == "the job has not begun for 12s");
  CHECK(joined.server.heard_at() > begin);
}

TEST_CASE("a server that ends in good order tells its head why, and waits for the link's end",
          "[joined_server]") {
  Joined joined;
  joined.server.Leave("SIGTERM", absl::Hours(1));  // There is nobody to be told.
  const auto link = joined.Begin();
  std::thread leaves([&] { joined.server.Leave("SIGTERM", absl::Hours(1)); });
  CHECK(link->AwaitReport(ServerReport::kLeaving).leaving().why() == "SIGTERM");
  CHECK(absl::IsUnavailable(joined.End(link, absl::UnavailableError("it ends"))));
  leaves.join();
  CHECK(joined.server.leaving());
}

TEST_CASE("a server that is stopped leaves its link, and takes no other", "[joined_server]") {
  Joined joined;
  const auto link = joined.Connect();
  CHECK_FALSE(joined.server.AwaitStop(absl::ZeroDuration()));
  joined.server.Stop();
  CHECK(joined.server.AwaitStop(absl::Hours(1)));
  CHECK(absl::IsCancelled(joined.End(link, absl::OkStatus())));
  const auto late = std::make_shared<FakeHeadLink>();
  CHECK(absl::IsCancelled(joined.server.Follow(late)));
}

}  // namespace recon
