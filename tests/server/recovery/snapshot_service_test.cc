#include "server/recovery/snapshot_service.h"
#include "server/recovery/initial_values.h"

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/mutex.h"
#include "common/storage/local_store.h"
#include "server/durability/recovery.h"
#include "tests/server/data_plane/push_frames.h"
#include "tests/server/durability/sample_state.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

absl::StatusOr<SnapshotReply> TakeOne(SnapshotService* service) {
  absl::StatusOr<SnapshotReply> result = absl::UnknownError("not taken");
  Notification taken;
  service->Take("requested", [&](const absl::StatusOr<SnapshotReply>& reply) {
    result = reply;
    taken.Notify();
  });
  taken.WaitForNotification();
  return result;
}

}  // namespace

TEST_CASE("a restored server goes on with equal bits, ledger included", "[snapshot_service]") {
  const TempDir directory;
  const auto store = *LocalStore::Open(directory.path(), /*writer=*/true);
  Metrics metrics;
  SnapshotService::Options options;
  options.optimizer = "adam";
  const std::vector<float> initial(250 * 250 + 30, 0.25f);

  ParamServerHarness first(StalenessGate::kUnlimited, OptimizerKind::kAdam, 0.01);
  first.Define(SampleModel(), initial);
  first.Join(1);
  for (uint64_t step = 0; step < 5; ++step) first.Push(1, step, 0.1f)->done.WaitForNotification();
  SnapshotService service(options, &first.server(), store.get(), &metrics);
  REQUIRE(TakeOne(&service).ok());
  for (uint64_t step = 5; step < 9; ++step) first.Push(1, step, -0.2f)->done.WaitForNotification();

  ParamServerHarness second(StalenessGate::kUnlimited, OptimizerKind::kAdam, 0.01, /*apply_threads=*/3);
  REQUIRE(second.server().DefineModel(SampleModel()).ok());
  const SnapshotReader reader(store.get());
  REQUIRE(LoadNewest(reader, [&](const Manifest& manifest) {
            return second.server().Restore(reader, manifest);
          }).ok());
  second.Join(1);
  for (uint64_t step = 3; step < 9; ++step)
    second.Push(1, step, step < 5 ? 99.0f : -0.2f)->done.WaitForNotification();
  CHECK(second.Values(1) == first.Values(1));

  // The other's state as a snapshot: equal roots.
  const TempDir other;
  const auto other_store = *LocalStore::Open(other.path(), /*writer=*/true);
  SnapshotService other_service(options, &second.server(), other_store.get(), &metrics);
  CHECK(TakeOne(&service)->state_root() == TakeOne(&other_service)->state_root());
}

TEST_CASE("a snapshot of another optimizer is refused; a new job begins with its parameters alone",
          "[snapshot_service]") {
  const TempDir directory;
  const auto store = *LocalStore::Open(directory.path(), /*writer=*/true);
  Metrics metrics;
  ParamServerHarness adam(StalenessGate::kUnlimited, OptimizerKind::kAdam, 0.01);
  adam.Define(SampleModel(), std::vector<float>(250 * 250 + 30, 0.25f));
  SnapshotService service({}, &adam.server(), store.get(), &metrics);
  REQUIRE(TakeOne(&service).ok());
  const SnapshotReader reader(store.get());
  const Manifest manifest = *reader.ReadManifest(Generation(1));
  ParamServerHarness sgd(StalenessGate::kUnlimited, OptimizerKind::kSgd, 0.01);
  REQUIRE(sgd.server().DefineModel(SampleModel()).ok());
  CHECK(absl::IsFailedPrecondition(sgd.server().Restore(reader, manifest)));
  CHECK((*InitialValues::Open(directory.path()))->LoadInto(&sgd.server()).ok());
  sgd.Join(1);
  CHECK(sgd.Values(1)[7] == 0.25f);
}

TEST_CASE("a state that has not changed is not published again", "[snapshot_service]") {
  const TempDir directory;
  const auto store = *LocalStore::Open(directory.path(), /*writer=*/true);
  Metrics metrics;
  ParamServerHarness harness(StalenessGate::kUnlimited, OptimizerKind::kSgd, 0.01);
  harness.Define(SampleModel(), std::vector<float>(250 * 250 + 30, 0.25f));
  harness.Join(1);
  SnapshotService service({}, &harness.server(), store.get(), &metrics);
  const SnapshotReply first = *TakeOne(&service);
  const SnapshotReply second = *TakeOne(&service);
  CHECK(second.generation() == first.generation());
  CHECK(second.state_root() == first.state_root());
  CHECK(SnapshotReader(store.get()).List()->size() == 1);
  harness.Push(1, 0, 0.1f)->done.WaitForNotification();
  CHECK(TakeOne(&service)->generation() == first.generation() + 1);
}

TEST_CASE("of two servers of a job that cannot see each other, the newer has it", "[snapshot_service]") {
  const TempDir directory;
  const auto store = *LocalStore::Open(directory.path(), /*writer=*/true);
  Metrics metrics;
  ParamServer::Options options =
      ParamServerHarness::MakeOptions(StalenessGate::kUnlimited, OptimizerKind::kSgd, 1, /*apply_threads=*/1);
  ParamServerHarness before(options);
  ++options.rules.cluster_epoch;
  ParamServerHarness after(options);
  const std::vector<float> initial(250 * 250 + 30, 0.25f);
  before.Define(SampleModel(), initial);
  after.Define(SampleModel(), initial);
  SnapshotService::Options ours;
  ours.job_id = 5;
  SnapshotService old_service(ours, &before.server(), store.get(), &metrics);
  REQUIRE(TakeOne(&old_service).ok());
  SnapshotService new_service(ours, &after.server(), store.get(), &metrics);
  REQUIRE(TakeOne(&new_service).ok());
  const auto refused = TakeOne(&old_service);
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(absl::StrContains(refused.status().message(), "taken the job over"));
  CHECK(absl::IsFailedPrecondition(old_service.taken_over()));
  CHECK(new_service.taken_over().ok());
  CHECK(TakeOne(&new_service).ok());
  SnapshotService::Options other_job;
  other_job.job_id = 7;
  SnapshotService other_service(other_job, &after.server(), store.get(), &metrics);
  CHECK(absl::IsFailedPrecondition(TakeOne(&other_service).status()));
  CHECK(absl::StrContains(other_service.taken_over().message(), "another job"));
}

TEST_CASE("periodic snapshots are taken when due and only if something changed", "[snapshot_service]") {
  const TempDir directory;
  const auto store = *LocalStore::Open(directory.path(), /*writer=*/true);
  Metrics metrics;
  SnapshotService::Options options;
  options.interval = absl::Seconds(30);
  ParamServerHarness harness(StalenessGate::kUnlimited);
  SnapshotService service(options, &harness.server(), store.get(), &metrics);
  CHECK(absl::IsFailedPrecondition(TakeOne(&service).status()));  // No parameters yet.
  harness.Define(SampleModel(), std::vector<float>(250 * 250 + 30, 0));
  harness.Join(1);
  const absl::Time start = Now();
  service.Tick(start + absl::Seconds(10));
  service.Flush();
  CHECK(service.status().published() == 0);
  service.Tick(start + absl::Seconds(31));
  service.Flush();
  CHECK(service.status().published() == 1);
  service.Tick(start + absl::Seconds(70));
  service.Flush();
  CHECK(service.status().published() == 1);
  harness.Push(1, 0, 1)->done.WaitForNotification();
  service.Tick(start + absl::Seconds(110));
  service.Flush();
  CHECK(service.status().published() == 2);
  CHECK(service.status().failed() == 1);
}

TEST_CASE("with little memory for snapshots pushes wait, and everything is right", "[snapshot_service]") {
  constexpr uint64_t kWide = 900;  // 13 pages, and twice as many of the optimizer's.
  const TempDir directory;
  const auto store = *LocalStore::Open(directory.path(), /*writer=*/true);
  Metrics metrics;
  SnapshotService::Options options;
  options.optimizer = "adam";
  options.memory = 0.05;
  {
    ParamServerHarness harness(StalenessGate::kUnlimited, OptimizerKind::kAdam, 0.01);
    harness.Define(SampleModel(kWide), std::vector<float>(kWide * kWide + 30, 0.25f));
    harness.Join(1);
    harness.Push(1, 0, 0.1f)->done.WaitForNotification();
    SnapshotService service(options, &harness.server(), store.get(), &metrics);
    const uint64_t waits = GetPageUse().waits;
    uint64_t step = 1;
    for (; GetPageUse().waits == waits; ++step) {
      REQUIRE(step < 200);
      service.Take(
          "test", [](const absl::StatusOr<SnapshotReply>&) {}, SnapshotWriter::Pace::kBackground);
      const auto pending = harness.Push(1, step, 0.1f);
      pending->done.WaitForNotification();
      REQUIRE(pending->reply.ok());
    }
    service.Flush();
    CHECK(service.status().failed() == 0);
  }
  CHECK(GetPageUse().limit == UINT64_MAX);
  const SnapshotReader reader(store.get());
  const std::vector<Generation> generations = *reader.List();
  for (const Generation generation : generations) CHECK(reader.Verify(generation, {}).ok());
}

}  // namespace recon
