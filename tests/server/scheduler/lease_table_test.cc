#include "server/scheduler/lease_table.h"

#include "catch2/catch.hpp"

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

TEST_CASE("lease numbers of two cluster epochs never meet", "[scheduler]") {
  LeaseTable old_epoch(absl::Seconds(10), uint64_t{1} << 40);
  LeaseTable new_epoch(absl::Seconds(10), uint64_t{2} << 40);
  const LeaseId lease = old_epoch.Grant(Split(1), kOne, kStart);
  new_epoch.Grant(Split(1), kOne, kStart);
  CHECK_FALSE(new_epoch.Holds(lease, kOne));
}

}  // namespace recon
