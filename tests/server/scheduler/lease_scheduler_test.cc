#include "server/scheduler/lease_scheduler.h"

#include <algorithm>
#include <csignal>
#include <random>
#include <set>
#include <tuple>

#include "catch2/catch.hpp"
#include "tests/support/death.h"

namespace recon {
namespace {

constexpr WorkerId kOne(1), kTwo(2);
const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

// Two data epochs of four splits of ten samples, an evaluation of ten samples after each; leases last 10 s.
SplitQueue::Config SmallJob() {
  SplitQueue::Config config;
  config.train_samples = 40;
  config.test_samples = 10;
  config.split_samples = 10;
  config.eval_split_samples = 10;
  config.data_epochs = 2;
  return config;
}

LeaseScheduler StartedScheduler() {
  LeaseScheduler work(absl::Seconds(10), /*first_lease=*/100);
  REQUIRE(work.Start(SmallJob()).ok());
  return work;
}

Completion FirstOf(const Lease& lease, const std::string& worker = "w") {
  Completion completion;
  completion.set_kind(lease.kind());
  completion.set_data_epoch(lease.data_epoch());
  completion.set_split(lease.split());
  completion.set_begin(lease.begin());
  completion.set_end(std::min(lease.begin() + 10, lease.end()));
  completion.set_worker(worker);
  return completion;
}

// The lease without its first split, as its worker knows it.
Lease Rest(Lease lease) {
  lease.set_split(lease.split() + 1);
  lease.set_begin(lease.begin() + 10);
  lease.set_splits(lease.splits() - 1);
  return lease;
}

}  // namespace

TEST_CASE("work is granted under numbers above the first, until nothing is free", "[scheduler]") {
  LeaseScheduler work = StartedScheduler();
  std::set<uint64_t> numbers;
  // The last split of the second pass waits for the first one's evaluation.
  for (int split = 0; split < 7; ++split) {
    const std::optional<Lease> lease = work.Grant(kOne, 1, kNow, 0);
    REQUIRE(lease);
    CHECK(lease->lease() > 100);
    numbers.insert(lease->lease());
  }
  CHECK(numbers.size() == 7);
  CHECK_FALSE(work.Grant(kOne, 1, kNow, 0));
  CHECK(work.HeldBy(kOne).leases == 7);
  CHECK(work.HeldBy(kOne).splits == 7);
  CHECK(work.HeldBy(kOne).trains);
  CHECK(work.HeldBy(kTwo).leases == 0);
  CHECK_FALSE(work.finished());
}

TEST_CASE("a split is completed once, and counts for the name of its worker", "[scheduler]") {
  LeaseScheduler work = StartedScheduler();
  const Lease lease = *work.Grant(kOne, 2, kNow, 0);
  REQUIRE(lease.splits() == 2);
  REQUIRE(*work.NextOf(LeaseId(lease.lease()), kOne, SplitId(0)));
  work.Complete(LeaseId(lease.lease()), kOne, FirstOf(lease, "anna"));
  CHECK(work.samples_completed() == 10);
  CHECK(work.samples_of("anna") == 10);
  CHECK(work.samples_of("otto") == 0);
  CHECK(work.HeldBy(kOne).splits == 1);
  // Said again, since the reply was lost: nothing is to be done.
  const auto again = work.NextOf(LeaseId(lease.lease()), kOne, SplitId(0));
  REQUIRE(again.ok());
  CHECK_FALSE(again->has_value());
}

TEST_CASE("only the first split of a lease is completed, and only by its holder", "[scheduler]") {
  LeaseScheduler work = StartedScheduler();
  const Lease lease = *work.Grant(kOne, 2, kNow, 0);
  const LeaseId id(lease.lease());
  CHECK(absl::IsAborted(work.NextOf(id, kOne, SplitId(1)).status()));
  CHECK(absl::IsAborted(work.NextOf(id, kTwo, SplitId(0)).status()));
  CHECK(absl::IsAborted(work.NextOf(LeaseId(99), kOne, SplitId(0)).status()));
  // A split before the lease that is not done was never of it.
  LeaseScheduler other = StartedScheduler();
  other.Grant(kTwo, 1, kNow, 0);
  const Lease second = *other.Grant(kOne, 1, kNow, 0);
  CHECK(absl::IsAborted(other.NextOf(LeaseId(second.lease()), kOne, SplitId(0)).status()));
  CHECK(DeathOf([&] { work.Complete(id, kOne, FirstOf(Rest(lease))); }).signal == SIGABRT);
}

TEST_CASE("a lease for which nothing was pushed ends, and its splits are free again", "[scheduler]") {
  LeaseScheduler work = StartedScheduler();
  const Lease lease = *work.Grant(kOne, 1, kNow, /*pushes=*/5);
  const LeaseId id(lease.lease());
  SECTION("nothing was") {
    CHECK(absl::IsAborted(work.CheckPushed(id, kOne, 5)));
    CHECK_FALSE(work.Holds(id, kOne));
    CHECK(work.Grant(kTwo, 1, kNow, 0)->split() == lease.split());
  }
  SECTION("something was") {
    CHECK(work.CheckPushed(id, kOne, 6).ok());
    CHECK(work.Holds(id, kOne));
  }
}

TEST_CASE("a split that was done before counts as done, and the rest of its lease is free", "[scheduler]") {
  LeaseScheduler work = StartedScheduler();
  const Lease lease = *work.Grant(kOne, 2, kNow, 0);
  work.NoteDoneBefore(LeaseId(lease.lease()), kOne, FirstOf(lease, "anna"));
  CHECK_FALSE(work.Holds(LeaseId(lease.lease()), kOne));
  CHECK(work.samples_completed() == 10);
  CHECK(work.samples_of("anna") == 0);  // Somebody else's.
  CHECK(work.Grant(kTwo, 1, kNow, 0)->split() == 1);
}

TEST_CASE("leases end by their time, by their worker's end, and when it gives them back", "[scheduler]") {
  LeaseScheduler work = StartedScheduler();
  const Lease renewed = *work.Grant(kOne, 1, kNow, 0);
  const Lease expires = *work.Grant(kOne, 1, kNow, 0);
  const Lease given = *work.Grant(kTwo, 1, kNow, 0);
  work.Renew(LeaseId(renewed.lease()), kOne, kNow + absl::Seconds(5));
  CHECK(absl::IsAborted(work.GiveBack(LeaseId(given.lease()), kOne)));
  CHECK(work.GiveBack(LeaseId(given.lease()), kTwo).ok());
  CHECK(absl::IsAborted(work.GiveBack(LeaseId(given.lease()), kTwo)));
  const auto expired = work.TakeBackExpired(kNow + absl::Seconds(10));
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].task.split.value() == expires.split());
  CHECK(work.TakeBackAllOf(kOne) == 1);
  // All of it is free again, in its order.
  for (uint32_t split = 0; split < 4; ++split) CHECK(work.Grant(kTwo, 1, kNow, 0)->split() == split);
}

std::vector<Lease> AdoptOne(LeaseScheduler* work, const Lease& held, WorkerId worker) {
  RegisterRequest request;
  *request.add_held() = held;
  return work->AdoptAll(request.held(), worker, kNow);
}

TEST_CASE("a lease that is held on over a registration counts only with a push, as before", "[scheduler]") {
  LeaseScheduler work = StartedScheduler();
  Lease held = *work.Grant(kOne, 2, kNow, /*pushes=*/7);
  SECTION("under its number") {}
  SECTION("under another one") { held.set_lease(0); }
  const std::vector<Lease> adopted = AdoptOne(&work, held, kOne);
  REQUIRE(adopted.size() == 1);
  CHECK(absl::IsAborted(work.CheckPushed(LeaseId(adopted[0].lease()), kOne, /*pushes=*/7)));
  const Lease again = *work.Grant(kOne, 2, kNow, /*pushes=*/7);
  CHECK(work.CheckPushed(LeaseId(AdoptOne(&work, again, kOne)[0].lease()), kOne, /*pushes=*/8).ok());
}

TEST_CASE("what a worker still works on is its own again after a restart, without what is done",
          "[scheduler]") {
  Lease held = *StartedScheduler().Grant(kOne, 3, kNow, 0);
  LeaseScheduler work = StartedScheduler();
  REQUIRE(work.Restore(FirstOf(held, "anna")).ok());
  CHECK(work.samples_of("anna") == 10);
  const std::vector<Lease> adopted_all = AdoptOne(&work, held, kOne);
  REQUIRE(adopted_all.size() == 1);
  const Lease* adopted = &adopted_all[0];
  CHECK(adopted->split() == 1);
  CHECK(adopted->splits() == 2);
  CHECK(adopted->begin() == 10);
  CHECK(adopted->end() == 30);
  // What was pushed to the server before this one is not known.
  CHECK(work.CheckPushed(LeaseId(adopted->lease()), kOne, 0).ok());
  SECTION("another one says so, too") { CHECK(AdoptOne(&work, held, kTwo).empty()); }
  SECTION("it says so of what is no split") {
    held.set_split(3);
    held.set_splits(2);
    CHECK(AdoptOne(&work, held, kTwo).empty());
    held.set_splits(~0u);
    CHECK(AdoptOne(&work, held, kTwo).empty());
    held.set_kind(LEASE_NONE);
    CHECK(AdoptOne(&work, held, kTwo).empty());
  }
}

TEST_CASE("a completion of another job is refused, with a hint", "[scheduler]") {
  LeaseScheduler work = StartedScheduler();
  Completion completion = FirstOf(*StartedScheduler().Grant(kOne, 1, kNow, 0));
  SECTION("of a later data epoch") { completion.set_data_epoch(2); }
  SECTION("of other samples") { completion.set_end(11); }
  const absl::Status refused = work.Restore(completion);
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK(std::string(refused.message()).find("was --data-epochs lowered?") != std::string::npos);
  CHECK(work.samples_completed() == 0);
}

// Whatever workers do, each split of each pass is completed exactly once, and nothing is lost.
TEST_CASE("every split is done exactly once, whatever happens to its leases", "[scheduler]") {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    LeaseScheduler work = StartedScheduler();
    std::set<std::tuple<int, uint32_t, uint32_t>> done;
    std::vector<std::pair<WorkerId, Lease>> known;  // What workers believe to hold.
    absl::Time now = kNow;
    for (int action = 0; action < 2000 && !work.finished(); ++action) {
      const WorkerId worker(1 + random() % 3);
      now += absl::Milliseconds(random() % 800);
      switch (random() % 8) {
        case 0:
          work.TakeBackExpired(now);
          break;
        case 1:
          if (random() % 4 == 0) work.TakeBackAllOf(worker);
          break;
        case 2:
        case 3:
          if (const auto lease = work.Grant(worker, 1 + random() % 3, now, 0))
            known.push_back({worker, *lease});
          break;
        default:
          if (known.empty()) break;
          auto& [holder, lease] = known[random() % known.size()];
          const auto next = work.NextOf(LeaseId(lease.lease()), holder, SplitId(lease.split()));
          if (!next.ok() || !*next) break;
          const bool is_new = done.insert({lease.kind(), lease.data_epoch(), lease.split()}).second;
          REQUIRE(is_new);
          work.Complete(LeaseId(lease.lease()), holder, FirstOf(lease));
          if (lease.splits() > 1) lease = Rest(lease);
      }
    }
    REQUIRE(work.finished());
    CHECK(done.size() == 2 * (4 + 1));
    CHECK(work.samples_completed() == 80);
    CHECK(work.samples_of("w") == 80);
    CHECK(work.Holders().empty());
  }
}

}  // namespace recon
