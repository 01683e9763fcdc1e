#include "server/scheduler/lease_table.h"

#include <cmath>
#include <iterator>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "server/scheduler/lease_size.h"
#include "server/scheduler/local_steps.h"

namespace recon {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
const WorkerId kOne(1);
const WorkerId kTwo(2);

Task Split(uint32_t split) {
  Task task;
  task.kind = LEASE_TRAIN;
  task.split = SplitId(split);
  return task;
}

}  // namespace

TEST_CASE("a lease belongs to its holder until it expires", "[scheduler]") {
  LeaseTable leases(absl::Seconds(10), 0);
  const LeaseId lease = leases.Grant(Split(1), kOne, kStart);
  CHECK(leases.Holds(lease, kOne));
  CHECK_FALSE(leases.Holds(lease, kTwo));
  CHECK_FALSE(leases.Take(lease, kTwo).has_value());
  CHECK(leases.TakeExpired(kStart + absl::Seconds(9)).empty());
  const auto expired = leases.TakeExpired(kStart + absl::Seconds(10));
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].task.split == SplitId(1));
  CHECK_FALSE(leases.Take(lease, kOne).has_value());
}

TEST_CASE("only its holder renews a lease, and only the leases it knows of", "[scheduler]") {
  LeaseTable leases(absl::Seconds(10), 0);
  const LeaseId one = leases.Grant(Split(1), kOne, kStart);
  const LeaseId two = leases.Grant(Split(2), kOne, kStart);
  const LeaseId other = leases.Grant(Split(3), kTwo, kStart);
  leases.Renew(one, kOne, kStart + absl::Seconds(8));
  leases.Renew(two, kOne, kStart + absl::Seconds(8));
  leases.Renew(other, kOne, kStart + absl::Seconds(8));
  const auto expired = leases.TakeExpired(kStart + absl::Seconds(12));
  REQUIRE(expired.size() == 1);
  CHECK(expired[0].holder == kTwo);
  CHECK(leases.TakeAllOf(kOne).size() == 2);
  CHECK(leases.HeldBy(kOne).empty());
}

TEST_CASE("who holds what is known after any sequence of grants and ends", "[scheduler]") {
  LeaseTable leases(absl::Seconds(10), 0);
  std::map<WorkerId, std::map<LeaseId, absl::Time>> expected;  // Until when.
  std::mt19937 random(7);
  const auto of = [&](unsigned most) { return std::uniform_int_distribution<unsigned>(0, most - 1)(random); };
  absl::Time now = kStart;
  for (int i = 0; i < 2000; ++i) {
    const WorkerId worker(1 + of(5));
    auto& held = expected[worker];
    const LeaseId any = held.empty() ? LeaseId(99'999) : std::next(held.begin(), of(held.size()))->first;
    switch (of(6)) {
      case 0:
      case 1:
        held[leases.Grant(Split(7), worker, now)] = now + absl::Seconds(10);
        break;
      case 2:
        CHECK(leases.Take(any, worker).has_value() == (held.erase(any) > 0));
        break;
      case 3:
        CHECK(leases.TakeFirst(any, worker, Split(7)) == (held.erase(any) > 0));
        break;
      case 4:
        now += absl::Seconds(of(4));
        for (const LeaseTable::Lease& lease : leases.TakeExpired(now)) CHECK(lease.expires <= now);
        for (auto& [holder, all] : expected) {
          for (auto one = all.begin(); one != all.end();)
            one = one->second <= now ? all.erase(one) : std::next(one);
        }
        break;
      case 5:
        if (of(8) > 0) break;
        CHECK(leases.TakeAllOf(worker).size() == held.size());
        held.clear();
        break;
    }
    std::set<WorkerId> holders;
    for (const auto& [holder, all] : expected) {
      std::vector<LeaseId> ids;
      for (const auto& [id, until] : all) ids.push_back(id);
      CHECK(leases.HeldBy(holder) == ids);
      CHECK(leases.LeasesOf(holder).size() == ids.size());
      if (!ids.empty()) holders.insert(holder);
    }
    CHECK(leases.Holders() == holders);
  }
}

TEST_CASE("the splits of a lease are completed in their order, and it ends with the last", "[scheduler]") {
  LeaseTable leases(absl::Seconds(10), 0);
  Task three = Split(4);
  three.splits = 3;
  three.end = 30;
  const LeaseId lease = leases.Grant(three, kOne, kStart);
  Task first = Split(4);
  first.end = 10;
  CHECK_FALSE(leases.TakeFirst(lease, kTwo, first));
  CHECK_FALSE(leases.TakeFirst(lease, kOne, Split(5)));
  CHECK(leases.TakeFirst(lease, kOne, first));
  CHECK_FALSE(leases.TakeFirst(lease, kOne, first));
  REQUIRE(leases.Find(lease, kOne) != nullptr);
  CHECK(leases.Find(lease, kOne)->split == SplitId(5));
  CHECK(leases.Find(lease, kOne)->splits == 2);
  CHECK(leases.Find(lease, kOne)->begin == 10);
  CHECK(leases.Find(lease, kTwo) == nullptr);
  CHECK(leases.TakeFirst(lease, kOne, Split(5)));
  CHECK(leases.TakeFirst(lease, kOne, Split(6)));
  CHECK_FALSE(leases.Holds(lease, kOne));
}

TEST_CASE("leases are as large as a worker is fast, and small at the end of a data epoch", "[scheduler]") {
  const auto splits = [](double samples_per_second, uint32_t free = 100'000, int workers = 4) {
    return LeaseSplits(samples_per_second, 100, absl::Seconds(2), free, workers);
  };
  CHECK(splits(1000) == 20);
  CHECK(splits(5000) == 100);
  CHECK(splits(40) == 1);
  CHECK(splits(0) == 1);
  CHECK(splits(std::nan("")) == 1);
  CHECK(splits(-1) == 1);
  CHECK(splits(1e30) == limits::kLeaseSplitsMax);
  CHECK(splits(5000, 80) == 10);  // Half of 80, for four.
  CHECK(splits(5000, 7) == 1);
  CHECK(splits(5000, 0, 0) == 1);
  CHECK(LeaseSplits(1e6, 100, absl::ZeroDuration(), 1000, 1) == 1);
}

TEST_CASE("slower workers take as many local steps as fit into the fastest's time", "[scheduler]") {
  CHECK(LocalStepsBySpeed(16, 1, 1) == 16);
  CHECK(LocalStepsBySpeed(16, 4, 1) == 4);
  CHECK(LocalStepsBySpeed(16, 1.5, 1) == 11);
  CHECK(LocalStepsBySpeed(16, 1000, 1) == 1);
  CHECK(LocalStepsBySpeed(16, INFINITY, 1) == 1);
  CHECK(LocalStepsBySpeed(16, std::nan(""), 1) == 16);
  CHECK(LocalStepsBySpeed(16, 0, 1) == 16);  // It has not computed any.
  CHECK(LocalStepsBySpeed(16, 1, 0) == 16);
  CHECK(LocalStepsBySpeed(16, 1, 2) == 16);
}

TEST_CASE("lease numbers of two cluster epochs never meet", "[scheduler]") {
  LeaseTable old_epoch(absl::Seconds(10), uint64_t{1} << 40);
  LeaseTable new_epoch(absl::Seconds(10), uint64_t{2} << 40);
  const LeaseId lease = old_epoch.Grant(Split(1), kOne, kStart);
  new_epoch.Grant(Split(1), kOne, kStart);
  CHECK_FALSE(new_epoch.Holds(lease, kOne));
}

}  // namespace recon
