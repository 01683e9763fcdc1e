#include "worker/comm/head_checks.h"

#include <functional>
#include <limits>

#include "catch2/catch.hpp"

namespace recon {
namespace {

JobConfig GoodJob() {
  JobConfig job;
  job.set_batch_samples(10);
  job.set_split_samples(100);
  job.set_eval_split_samples(50);
  job.set_data_epochs(3);
  job.set_bound(-1);
  job.set_heartbeat_interval_ms(500);
  return job;
}

Lease GoodLease() {
  Lease lease;
  lease.set_kind(LEASE_TRAIN);
  lease.set_data_epoch(2);
  lease.set_split(1);
  lease.set_splits(3);
  lease.set_begin(100);
  lease.set_end(350);
  return lease;
}

}  // namespace

TEST_CASE("a job that cannot be is not gone by", "[session]") {
  CHECK(CheckJob(GoodJob()).ok());
  const auto refused = [](const std::function<void(JobConfig*)>& change) {
    JobConfig job = GoodJob();
    change(&job);
    return absl::IsInvalidArgument(CheckJob(job));
  };
  CHECK(refused([](JobConfig* job) { job->set_batch_samples(0); }));
  CHECK(refused([](JobConfig* job) { job->set_split_samples(0); }));
  CHECK(refused([](JobConfig* job) { job->set_eval_split_samples(0); }));
  CHECK(refused([](JobConfig* job) { job->set_bound(-2); }));
  CHECK(refused([](JobConfig* job) { job->set_heartbeat_interval_ms(0); }));
  CHECK(refused([](JobConfig* job) { job->set_clip_norm(std::numeric_limits<double>::quiet_NaN()); }));
  CHECK(refused([](JobConfig* job) { job->mutable_local()->set_fragments(1); }));
  CHECK(refused([](JobConfig* job) { job->mutable_local()->set_steps(1); }));
  CHECK(refused([](JobConfig* job) { (*job->mutable_sync_periods())["g"] = 0; }));
}

TEST_CASE("a lease of samples that there are not is not begun", "[session]") {
  const auto check = [](const std::function<void(Lease*)>& change) {
    Lease lease = GoodLease();
    change(&lease);
    return CheckLease(lease, GoodJob(), /*train_samples=*/350, /*test_samples=*/60);
  };
  CHECK(check([](Lease*) {}).ok());
  CHECK(check([](Lease* lease) {
          lease->set_kind(LEASE_EVAL);
          lease->set_begin(0);
          lease->set_end(60);
          lease->set_splits(2);
          lease->set_data_epoch(3);
        }).ok());
  CHECK(absl::IsInvalidArgument(check([](Lease* lease) { lease->set_end(351); })));
  CHECK(absl::IsInvalidArgument(check([](Lease* lease) { lease->set_begin(350); })));
  CHECK(absl::IsInvalidArgument(check([](Lease* lease) { lease->set_begin(UINT64_MAX); })));
  CHECK(absl::IsInvalidArgument(check([](Lease* lease) { lease->set_splits(2); })));
  CHECK(absl::IsInvalidArgument(check([](Lease* lease) { lease->set_splits(UINT32_MAX); })));
  CHECK(absl::IsInvalidArgument(check([](Lease* lease) { lease->set_data_epoch(UINT32_MAX); })));
  CHECK(absl::IsInvalidArgument(check([](Lease* lease) { lease->set_kind(static_cast<LeaseKind>(77)); })));
  CHECK(absl::IsInvalidArgument(check([](Lease* lease) { lease->set_kind(LEASE_EVAL); })));
}

}  // namespace recon
