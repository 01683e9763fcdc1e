#include "worker/training/open_splits.h"

#include <csignal>
#include <memory>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/limits.h"
#include "tests/support/death.h"

namespace recon {
namespace {

Session::HeldLeasePtr SomeLease() { return std::make_shared<Session::HeldLease>(); }

}  // namespace

TEST_CASE("a split is finished when it is closed and all its pushes have ended", "[training]") {
  OpenSplits splits;
  const Session::HeldLeasePtr lease = SomeLease();
  const OpenSplitPtr split = splits.Open(lease, 3);
  CHECK(split->lease() == lease);
  CHECK(split->number() == 3);
  CHECK_FALSE(split->pushed());
  split->BeginPush();
  split->BeginPush();
  CHECK(split->pushed());
  split->EndPush(/*applied=*/true);
  split->Close();
  CHECK_FALSE(splits.any_finished());
  CHECK(splits.TakeFinished() == nullptr);
  split->EndPush(/*applied=*/true);
  CHECK(splits.any_finished());
  CHECK(splits.TakeFinished() == split);
  CHECK_FALSE(split->dropped());
  CHECK(splits.TakeFinished() == nullptr);  // It is open no more.
}

TEST_CASE("a split without a batch is finished when it is closed", "[training]") {
  OpenSplits splits;
  const OpenSplitPtr split = splits.Open(SomeLease(), 0);
  CHECK(splits.TakeFinished() == nullptr);
  split->Close();
  CHECK(splits.TakeFinished() == split);
  CHECK_FALSE(split->pushed());
}

TEST_CASE("splits are taken in their order, whichever is acknowledged first", "[training]") {
  OpenSplits splits;
  const Session::HeldLeasePtr lease = SomeLease();
  const OpenSplitPtr first = splits.Open(lease, 0);
  const OpenSplitPtr second = splits.Open(lease, 1);
  for (const OpenSplitPtr& split : {first, second}) {
    split->BeginPush();
    split->Close();
  }
  second->EndPush(/*applied=*/true);
  CHECK(splits.TakeFinished() == nullptr);
  first->EndPush(/*applied=*/true);
  CHECK(splits.TakeFinished() == first);
  CHECK(splits.TakeFinished() == second);
}

TEST_CASE("a push that ends without an acknowledgement drops its split", "[training]") {
  OpenSplits splits;
  const OpenSplitPtr lost = splits.Open(SomeLease(), 0);
  const OpenSplitPtr kept = splits.Open(SomeLease(), 0);
  lost->BeginPush();
  lost->BeginPush();
  lost->EndPush(/*applied=*/false);
  lost->EndPush(/*applied=*/true);
  CHECK(lost->dropped());
  CHECK_FALSE(kept->dropped());
  splits.DropAll();  // Its samples are of a history that has ended.
  CHECK(kept->dropped());
}

TEST_CASE("a worker has so many splits open, and no more", "[training]") {
  OpenSplits splits;
  std::vector<OpenSplitPtr> open;
  while (!splits.full()) open.push_back(splits.Open(SomeLease(), 0));
  CHECK(open.size() == limits::kOpenSplitsMax);
  open.front()->Close();
  CHECK(splits.full());
  CHECK(splits.TakeFinished() == open.front());
  CHECK_FALSE(splits.full());
}

TEST_CASE("a split that is closed twice, or a push that ends twice, ends the process", "[training]") {
  OpenSplit split(SomeLease(), 0);
  split.BeginPush();
  split.EndPush(/*applied=*/true);
  CHECK(DeathOf([&split] { split.EndPush(/*applied=*/true); }).signal == SIGABRT);
  split.Close();
  CHECK(DeathOf([&split] { split.Close(); }).signal == SIGABRT);
}

}  // namespace recon
