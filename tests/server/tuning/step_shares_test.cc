#include "server/tuning/step_shares.h"

#include <limits>

#include "catch2/catch.hpp"

namespace recon {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
const WorkerId kOne(1);

StepWork Work(uint64_t steps, double step, double stall, double exchange) {
  StepWork work;
  work.set_steps(steps);
  work.set_step_seconds(step);
  work.set_stall_seconds(stall);
  work.set_exchange_seconds(exchange);
  return work;
}

StepShares::Worker Named(const std::string& name, double batch, double own, double waits) {
  return {name, batch, {own, waits}};
}

}  // namespace

TEST_CASE("a worker's waiting for others is what of its stalls its replies waited for them", "[tuning]") {
  StepShares shares;
  shares.Report(kOne, Work(10, 5, 1, 1), 0.5, kStart);
  CHECK(shares.Find(kOne) == nullptr);
  // 20 steps of 0.1 s, of which it waits 0.08 s for replies; half of that these waited for others.
  const StepWork later = Work(30, 7, 2.6, 2.6);
  shares.Report(kOne, later, 1.3, kStart + absl::Seconds(1));
  CHECK(shares.Find(kOne) == nullptr);
  shares.Report(kOne, later, 1.3, kStart + absl::Seconds(2));
  REQUIRE(shares.Find(kOne) != nullptr);
  CHECK(shares.Find(kOne)->waits == Approx(0.4));
  CHECK(shares.Find(kOne)->own_seconds == Approx(0.06));
}

TEST_CASE("a share stays until there is a step, and sums that begin again do no harm", "[tuning]") {
  StepShares shares;
  shares.Report(kOne, Work(10, 1, 0, 1), 0, kStart);
  shares.Report(kOne, Work(10, 1, 0, 1), 0, kStart + absl::Seconds(20));
  CHECK(shares.Find(kOne) == nullptr);
  shares.Report(kOne, Work(11, 31, 30, 31), 30, kStart + absl::Seconds(30));
  REQUIRE(shares.Find(kOne) != nullptr);
  CHECK(shares.Find(kOne)->waits == Approx(1));
  const StepWork nonsense = Work(12, std::numeric_limits<double>::quiet_NaN(), 1, 1);
  shares.Report(kOne, nonsense, 31, kStart + absl::Seconds(40));
  shares.Report(kOne, Work(1, 1, 0, 1), 0, kStart + absl::Seconds(50));
  CHECK(shares.Find(kOne)->waits == Approx(1));
  shares.Report(kOne, Work(5, 3, 0, 2), 0, kStart + absl::Seconds(60));
  CHECK(shares.Find(kOne)->waits == 0);
  shares.Forget(kOne);
  CHECK(shares.Find(kOne) == nullptr);
}

TEST_CASE("who holds up whom is said with the numbers, and of nobody where nobody waits", "[tuning]") {
  CHECK(StepShares::WhoHoldsUp({}).empty());
  CHECK(StepShares::WhoHoldsUp({Named("w1", 0.05, 0.06, 0.01), Named("w2", 0.05, 0.05, 0.09)}).empty());
  CHECK(StepShares::WhoHoldsUp({Named("w1", 0.005, 0.006, 0.9), Named("w2", 0.005, 0.006, 0.86),
                                Named("w3", 0.051, 0.052, 0)}) ==
        "w3 (0.051 s a batch) holds up 2 workers, which wait 88 % of the time");
  CHECK(StepShares::WhoHoldsUp({Named("w1", 0.2, 0.2, 0), Named("w2", 0.1, 0.1, 0.5)}) ==
        "w1 (0.200 s a batch) holds up 1 worker, which waits 50 % of the time");
}

}  // namespace recon
