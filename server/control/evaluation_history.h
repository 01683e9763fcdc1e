#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/job.pb.h"
#include "proto/status.pb.h"
#include "server/durability/retention.h"

namespace recon {

// InvalidArgument, with the numbers, unless a worker can have measured this on `samples` samples: no more of
// them right than there are, measures with distinct names, and finite.
absl::Status CheckEvaluation(const EvalResult& eval, uint64_t samples);

// What the evaluations of a job came to, one after each data epoch, in the order in which they ended.
//
// Pure, but for a line in the log; not thread-safe.
class EvaluationHistory {
 public:
  // `data_epochs`: how many the job has.
  explicit EvaluationHistory(uint32_t data_epochs) : data_epochs_(data_epochs) {}

  // The evaluation after `data_epochs` passes is whole: `sum` is of all its samples, at least one.
  const EvalEntry& Add(uint32_t data_epochs, const EvalResult& sum, int64_t unix_ms);
  // Whether the last one is better than all before it. There is one.
  bool LastIsBest(BestBy by) const;
  const std::vector<EvalEntry>& entries() const { return entries_; }

 private:
  const uint32_t data_epochs_;
  std::vector<EvalEntry> entries_;
};

}  // namespace recon
