#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "proto/job.pb.h"

namespace recon {

// A piece of work: splits of one pass over the training data that follow each other, or one of an evaluation.
struct Task {
  LeaseKind kind = LEASE_NONE;
  uint32_t data_epoch = 0;  // Evaluation: number of finished passes.
  SplitId split;            // The first.
  uint32_t splits = 1;
  uint64_t begin = 0;  // Samples [begin, end) of all of them.
  uint64_t end = 0;
};

// What is to be done, is being done and has been done: every split of every data epoch exactly once,
// and an evaluation after each epoch, which goes before training. Splits of the next epoch follow at
// once, so that nobody waits at the end of one.
//
// Threads: none of its own; the caller serializes. Work is O(1) per call, amortized.
class SplitQueue {
 public:
  struct Config {
    uint64_t train_samples = 0;
    uint64_t test_samples = 0;  // 0: no evaluations.
    uint32_t split_samples = 1;
    uint32_t eval_split_samples = 1;
    uint32_t data_epochs = 1;
    // A pass begins when all of the one before is done, and its evaluation, too.
    bool passes_in_turn = false;
  };

  // InvalidArgument if a size is 0 or there are more splits than limits::kSplitsMax.
  static absl::StatusOr<SplitQueue> Create(const Config& config);

  // The next task, marked as taken; nothing if all are taken or done. Of training, up to `splits` splits:
  // fewer where others lie between. `ahead`: who asks has work yet, and gets the last free split of a pass
  // only once somebody has all of the evaluation before it. Else he could end the pass before he asks again,
  // with parameters that both evaluations were of.
  std::optional<Task> Next(uint32_t splits = 1, bool ahead = false);
  // The first pass that is not done, with its evaluation; the last one's successor if all are.
  uint32_t data_epoch() const;
  // Something of its training is done.
  bool begun(uint32_t data_epoch) const { return data_epoch < train_.size() && train_[data_epoch].done > 0; }
  // Whether no split of that pass is free: all are done, or some worker's.
  bool all_given(uint32_t data_epoch) const {
    return data_epoch >= train_.size() || train_[data_epoch].free == 0;
  }
  // Free splits of the pass that the next training task is of.
  uint32_t free_splits() const;
  // A taken task that will not be completed by its holder goes to the front again.
  void Return(const Task& task);
  // Takes what a worker says it still works on, without the splits at its front that are done: it has not
  // heard of that. Nothing if that is all of it, or if one of the others is taken or done.
  std::optional<Task> TakeRest(const Task& task);
  // Marks a task as done; false if one of its splits was done before. `eval` counts for evaluations.
  bool Complete(const Task& task, const EvalResult& eval);

  // `splits` splits from this on, as a task; InvalidArgument if they are not there.
  absl::StatusOr<Task> Find(LeaseKind kind, uint32_t data_epoch, SplitId split, uint32_t splits = 1) const;
  bool done(LeaseKind kind, uint32_t data_epoch, SplitId split) const;

  bool finished() const;
  uint64_t samples_completed() const { return samples_completed_; }
  // The evaluation after `data_epochs` passes, if all of it is done.
  std::optional<EvalResult> Evaluation(uint32_t data_epochs) const;

 private:
  enum State : uint8_t { kFree, kTaken, kDone };
  // The splits of one pass (or evaluation), in order.
  struct Round {
    explicit Round(uint64_t splits = 0) : states(splits, kFree), free(static_cast<uint32_t>(splits)) {}
    std::vector<uint8_t> states;
    uint32_t free = 0;
    uint32_t done = 0;
    uint32_t first_free = 0;  // No split before it is free.
    EvalResult eval;
    bool complete() const { return done == states.size(); }
  };

  explicit SplitQueue(const Config& config);
  static void Set(Round* round, uint32_t split, State state);
  // The first free split and as many as are free behind it, at most `splits`; how many that are, 0 if none is
  // free.
  static uint32_t TakeFirstFree(Round* round, uint32_t splits, uint32_t* first);
  // Free splits of the pass, without the last one if that waits for the evaluation before it.
  uint32_t FreeAhead(uint32_t data_epoch) const;
  Task MakeTask(LeaseKind kind, uint32_t data_epoch, uint32_t split, uint32_t splits) const;
  Round* RoundOf(const Task& task);

  Config config_;
  bool Complete(uint32_t data_epoch) const;

  std::vector<Round> train_;         // By data epoch.
  std::map<uint32_t, Round> evals_;  // By finished passes; made when the pass is complete.
  uint32_t first_open_epoch_ = 0;    // No epoch before it has a free split.
  uint64_t samples_completed_ = 0;
};

}  // namespace recon
