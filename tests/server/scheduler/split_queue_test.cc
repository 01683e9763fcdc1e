#include "server/scheduler/split_queue.h"

#include <random>
#include <set>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"

namespace recon {
namespace {

SplitQueue::Config Config(uint64_t train, uint64_t test, uint32_t epochs) {
  SplitQueue::Config config;
  config.train_samples = train;
  config.test_samples = test;
  config.split_samples = 10;
  config.eval_split_samples = 4;
  config.data_epochs = epochs;
  return config;
}

EvalResult Hits(uint64_t samples, uint64_t correct) {
  EvalResult eval;
  eval.set_samples(samples);
  eval.set_correct(correct);
  return eval;
}

}  // namespace

TEST_CASE("splits tile each data epoch, the next follows at once, evaluation goes first", "[scheduler]") {
  SplitQueue queue = *SplitQueue::Create(Config(25, 6, 2));
  std::vector<Task> first;
  for (int i = 0; i < 3; ++i) first.push_back(*queue.Next());
  CHECK(first[0].begin == 0);
  CHECK(first[2].begin == 20);
  CHECK(first[2].end == 25);
  const Task ahead = *queue.Next();  // Nobody waits for the end of an epoch.
  CHECK(ahead.data_epoch == 1);
  for (const Task& task : first) CHECK(queue.Complete(task, {}));
  const Task eval = *queue.Next();
  CHECK(eval.kind == LEASE_EVAL);
  CHECK(eval.data_epoch == 1);
  const Task eval2 = *queue.Next();
  CHECK(eval2.end == 6);
  CHECK(queue.Next()->kind == LEASE_TRAIN);
  CHECK_FALSE(queue.Evaluation(1).has_value());
  CHECK(queue.Complete(eval, Hits(4, 3)));
  CHECK(queue.Complete(eval2, Hits(2, 1)));
  CHECK(queue.Evaluation(1)->correct() == 4);
  CHECK(queue.samples_completed() == 25);
}

TEST_CASE("where passes go in turn one begins when the one before is done, and its evaluation",
          "[scheduler]") {
  SplitQueue::Config config = Config(20, 4, 2);
  config.passes_in_turn = true;
  SplitQueue queue = *SplitQueue::Create(config);
  const Task one = *queue.Next();
  const Task two = *queue.Next();
  CHECK_FALSE(queue.Next());
  CHECK_FALSE(queue.begun(0));
  CHECK(queue.Complete(one, {}));
  CHECK(queue.begun(0));
  CHECK_FALSE(queue.Next());
  CHECK(queue.Complete(two, {}));
  const Task evaluation = *queue.Next();
  CHECK(evaluation.kind == LEASE_EVAL);
  CHECK_FALSE(queue.Next());
  CHECK(queue.data_epoch() == 0);
  CHECK(queue.Complete(evaluation, Hits(4, 4)));
  CHECK(queue.data_epoch() == 1);
  CHECK(queue.Next()->data_epoch == 1);
}

TEST_CASE("who has work yet gets the last split of a pass when somebody has all of the evaluation before it",
          "[scheduler]") {
  // Two splits a pass, two an evaluation.
  SplitQueue queue = *SplitQueue::Create(Config(20, 6, 3));
  const Task one = *queue.Next();
  const Task two = *queue.Next();
  CHECK(queue.free_splits() == 2);
  const Task ahead = *queue.Next(5, /*ahead=*/true);
  CHECK(ahead.data_epoch == 1);
  CHECK(ahead.splits == 1);
  CHECK(queue.free_splits() == 1);
  // With it the second pass could end before the first is evaluated.
  CHECK_FALSE(queue.Next(1, /*ahead=*/true));
  CHECK(queue.Complete(ahead, {}));
  CHECK_FALSE(queue.Next(1, /*ahead=*/true));
  // Whoever has nothing to do waits for nobody.
  queue.Return(*queue.Next());
  CHECK(queue.Complete(one, {}));
  CHECK(queue.Complete(two, {}));
  const Task eval = *queue.Next();
  CHECK(eval.kind == LEASE_EVAL);
  const Task eval2 = *queue.Next();
  CHECK(eval2.kind == LEASE_EVAL);
  const Task last = *queue.Next(1, /*ahead=*/true);
  CHECK(last.data_epoch == 1);
  // Who had part of the evaluation is gone: it goes first again, and what was given out is not taken back.
  queue.Return(eval2);
  CHECK(queue.Next()->kind == LEASE_EVAL);
  queue.Return(last);
  CHECK(queue.Next()->data_epoch == 1);
  CHECK(queue.Next()->data_epoch == 2);
}

TEST_CASE("where a pass is one split it waits for the evaluation, and without evaluations for nothing",
          "[scheduler]") {
  SplitQueue queue = *SplitQueue::Create(Config(10, 4, 2));
  const Task pass = *queue.Next(4, /*ahead=*/true);
  CHECK_FALSE(queue.Next(4, /*ahead=*/true));
  CHECK(queue.Complete(pass, {}));
  CHECK(queue.Next(4, /*ahead=*/true)->kind == LEASE_EVAL);
  CHECK(queue.Next(4, /*ahead=*/true)->data_epoch == 1);
  SplitQueue untested = *SplitQueue::Create(Config(10, 0, 2));
  CHECK(untested.Next()->data_epoch == 0);
  CHECK(untested.Next()->data_epoch == 1);
}

TEST_CASE("a split is taken once, completed once, and comes back when it is returned", "[scheduler]") {
  SplitQueue queue = *SplitQueue::Create(Config(30, 0, 1));
  const Task task = *queue.Next();
  CHECK_FALSE(queue.TakeRest(task));
  queue.Return(task);
  CHECK(queue.TakeRest(task));
  queue.Return(task);
  CHECK(queue.Next()->split == task.split);
  CHECK(queue.Complete(task, {}));
  CHECK_FALSE(queue.Complete(task, {}));
  queue.Return(task);  // Too late: it is done.
  CHECK_FALSE(queue.TakeRest(task));
  CHECK(queue.Next()->split != task.split);
}

TEST_CASE("a task of several splits: only what lies side by side, taken up again without what is done",
          "[scheduler]") {
  SplitQueue queue = *SplitQueue::Create(Config(75, 0, 2));  // 8 splits, the last of 5 samples.
  CHECK(queue.free_splits() == 8);
  const Task one = *queue.Next(3);
  const Task two = *queue.Next(2);
  CHECK(one.splits == 3);
  CHECK(one.end == 30);
  CHECK(two.begin == 30);
  CHECK(queue.free_splits() == 3);
  queue.Return(one);
  const Task again = *queue.Next(10);
  CHECK(again.split == one.split);
  CHECK(again.splits == 3);  // Behind them are those of `two`.
  const Task last = *queue.Next(10);
  CHECK(last.splits == 3);
  CHECK(last.end == 75);
  CHECK(queue.free_splits() == 8);  // Those of the next epoch.
  CHECK(queue.Next(1)->data_epoch == 1);

  CHECK(queue.Complete(*queue.Find(LEASE_TRAIN, 0, one.split), {}));
  queue.Return(one);  // What is done stays done.
  CHECK(queue.done(LEASE_TRAIN, 0, one.split));
  const Task rest = *queue.TakeRest(one);
  CHECK(rest.splits == 2);
  CHECK(rest.begin == 10);
  CHECK_FALSE(queue.TakeRest(one));  // They are taken.
  CHECK_FALSE(queue.Complete(one, {}));
  CHECK(queue.Complete(rest, {}));
  CHECK_FALSE(queue.TakeRest(one));  // And done.
  CHECK(queue.samples_completed() == 30);
}

TEST_CASE("whatever fails in whatever order, every sample is completed exactly once", "[scheduler]") {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    const uint64_t samples = 1 + random() % 120;
    const uint32_t epochs = 1 + random() % 4;
    const uint64_t test = random() % 3 == 0 ? 0 : 1 + random() % 20;
    SplitQueue queue = *SplitQueue::Create(Config(samples, test, epochs));
    std::vector<Task> held;
    std::map<uint32_t, std::multiset<uint64_t>> done;
    while (!queue.finished()) {
      const uint32_t what = random() % 10;
      if (what < 5) {
        if (const auto task = queue.Next(1 + random() % 5)) held.push_back(*task);
        continue;
      }
      if (held.empty()) continue;
      const size_t pick = random() % held.size();
      const Task task = held[pick];
      held.erase(held.begin() + static_cast<ptrdiff_t>(pick));
      if (what < 7) {
        queue.Return(task);
        continue;
      }
      REQUIRE(queue.Complete(task, Hits(task.end - task.begin, 0)));
      if (task.kind == LEASE_TRAIN) {
        for (uint64_t i = task.begin; i < task.end; ++i) done[task.data_epoch].insert(i);
      }
    }
    REQUIRE(done.size() == epochs);
    for (const auto& [epoch, seen] : done) {
      REQUIRE(seen.size() == samples);
      REQUIRE(std::set<uint64_t>(seen.begin(), seen.end()).size() == samples);
    }
    CHECK(queue.samples_completed() == samples * epochs);
    for (uint32_t epoch = 1; test > 0 && epoch <= epochs; ++epoch) {
      CHECK(queue.Evaluation(epoch)->samples() == test);
    }
  }
}

TEST_CASE("sizes of 0 and too many splits are refused with the numbers", "[scheduler]") {
  CHECK(absl::IsInvalidArgument(SplitQueue::Create(Config(0, 1, 1)).status()));
  CHECK(absl::IsInvalidArgument(SplitQueue::Create(Config(1, 1, 0)).status()));
  const auto status = SplitQueue::Create(Config(uint64_t{1} << 40, 1, 1)).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(absl::StrContains(status.message(), "--split-samples"));
}

TEST_CASE("a task that is not of the job is not found", "[scheduler]") {
  const SplitQueue queue = *SplitQueue::Create(Config(30, 4, 2));
  CHECK(queue.Find(LEASE_TRAIN, 1, SplitId(2))->begin == 20);
  CHECK_FALSE(queue.Find(LEASE_TRAIN, 2, SplitId(0)).ok());
  CHECK_FALSE(queue.Find(LEASE_TRAIN, 0, SplitId(3)).ok());
  CHECK(queue.Find(LEASE_TRAIN, 0, SplitId(1), 2)->end == 30);
  CHECK_FALSE(queue.Find(LEASE_TRAIN, 0, SplitId(1), 3).ok());
  CHECK_FALSE(queue.Find(LEASE_TRAIN, 0, SplitId(1), UINT32_MAX).ok());
  CHECK_FALSE(queue.Find(LEASE_TRAIN, 0, SplitId(1), 0).ok());
  CHECK_FALSE(queue.Find(LEASE_EVAL, 1, SplitId(0)).ok());  // Not before the pass is complete.
  CHECK_FALSE(queue.Find(LEASE_NONE, 0, SplitId(0)).ok());
}

}  // namespace recon
