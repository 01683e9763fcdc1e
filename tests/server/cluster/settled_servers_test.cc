// Three servers of one job in which nothing breaks by chance: what snapshots and steps come to.

#include <memory>
#include <string>

#include "catch2/catch.hpp"
#include "common/snapshot/snapshot_reader.h"
#include "tests/server/cluster/simulated_worker.h"

namespace recon {
namespace {

const WorkerId kOne(1);
const WorkerId kTwo(2);

class Job {
 public:
  explicit Job(int bound) : head_(snapshots_.get(), &net_, bound) {}

  // The generation that a snapshot of this reason gets; as soon as all servers are there.
  uint64_t Snapshot(const std::string& reason) {
    absl::StatusOr<SnapshotReply> reply;
    REQUIRE(Becomes([&] {
      head_.With([&](HeadLife* head) { reply = head->TakeSnapshot(reason); });
      return reply.ok();
    }));
    return reply->generation();
  }
  Registered Register(WorkerId worker, uint64_t next_step) {
    absl::StatusOr<Registered> registered;
    REQUIRE(Becomes([&] {
      head_.With([&](HeadLife* head) {
        registered = head->Register(worker, ProcessOf(worker), next_step, /*resumes=*/false);
      });
      return registered.ok();
    }));
    return *registered;
  }
  // The worker's push, or what these servers get of it, is answered.
  void Push(WorkerId worker, uint64_t step, const std::vector<uint32_t>& servers = {0, 1, 2}) {
    const uint64_t epoch = Register(worker, step).cluster_epoch;
    REQUIRE(Becomes([&] {
      Exchange exchange;
      for (const uint32_t server : servers) {
        exchange.Send(
            nodes_, server,
            FrameFor(server, FrameKind::kPushPull, worker, ProcessOf(worker), epoch, step, /*value=*/1),
            ProcessOf(worker));
      }
      REQUIRE(exchange.Await(deadline_));
      for (const auto& [server, reply] : exchange.replies()) {
        if (!reply.ok()) return false;
      }
      return true;
    }));
  }
  void RestartHead() { head_.Restart(); }
  void RestartAll() {
    second_.Restart();
    head_.Restart();
    third_.Restart();
  }
  // All of them have heard of it.
  void AwaitFrontier(uint64_t step) {
    REQUIRE(Becomes([&] {
      uint64_t of_head = 0;
      head_.With([&](HeadLife* head) { of_head = head->frontier(); });
      return of_head == step && second_.frontier() == step && third_.frontier() == step;
    }));
  }
  size_t Published() const {
    const auto store = *LocalStore::Open("/snapshots", /*writer=*/false, snapshots_.get());
    return SnapshotReader(store.get()).List()->size();
  }

 private:
  static Incarnation ProcessOf(WorkerId worker) { return Incarnation(10 + worker.value()); }
  // Asks again whenever something has happened.
  template <typename Condition>
  bool Becomes(Condition condition) {
    while (!condition()) {
      if (Now() > deadline_) return false;
      net_.AwaitMessages(net_.messages() + 3, absl::Milliseconds(2));
    }
    return true;
  }

  const absl::Time deadline_ = Now() + absl::Seconds(60);
  const std::unique_ptr<FaultyFileSystem> snapshots_ = StoreOfZeros();
  MemoryNet net_{1};
  HeadNode head_;
  FollowerNode second_{ServerIdOf(1), snapshots_.get(), &net_};
  FollowerNode third_{ServerIdOf(2), snapshots_.get(), &net_};
  const ClusterNodes nodes_{&head_, {&second_, &third_}, &net_};
};

}  // namespace

TEST_CASE("a state of several servers that has not changed is not published again", "[cluster]") {
  Job job(/*bound=*/-1);
  const uint64_t first = job.Snapshot("requested");
  const size_t published = job.Published();
  CHECK(job.Snapshot("drain") == first);
  CHECK(job.Published() == published);
  // Of another server's shards alone: the head has no record of it.
  job.Push(kOne, 0, {1});
  const uint64_t changed = job.Snapshot("drain");
  CHECK(changed > first);
  CHECK(job.Snapshot("requested") == changed);
  CHECK(job.Snapshot("drain") == changed);
  // Nor by those who come to the same state from their logs.
  job.RestartAll();
  CHECK(job.Snapshot("drain") == changed);
  job.Push(kOne, 1, {2});
  CHECK(job.Snapshot("requested") > changed);
  // What the job's course asks for is published whatever it has.
  const uint64_t recovered = job.Snapshot("recovered");
  CHECK(recovered > changed + 1);
  CHECK(job.Snapshot("requested") == recovered);
}

TEST_CASE("with a bound, too, a head that begins anew lets nobody begin far behind those who were there",
          "[cluster]") {
  for (const int bound : {0, 1, 3}) {
    INFO("bound " << bound);
    Job job(bound);
    constexpr uint64_t kSteps = 9;
    for (uint64_t step = 0; step < kSteps; ++step) job.Push(kOne, step);
    job.AwaitFrontier(kSteps);
    job.RestartHead();
    // Before the one that was there has come back: it would wait for all that this one has to catch up with.
    CHECK(job.Register(kTwo, 0).step == kSteps);
    job.AwaitFrontier(kSteps);
    if (bound > 0) job.Push(kOne, kSteps);
  }
}

}  // namespace recon
