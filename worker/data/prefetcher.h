#pragma once

#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/base/lane.h"
#include "common/base/mutex.h"
#include "worker/data/dataset.h"

namespace recon {

// Reads the batches of one lease ahead of the computing: while a batch is computed, the next is read.
//
// Threads: one thread calls Next(); reading runs on `lane`.
// Ownership: `dataset` and `lane` must outlive the prefetcher; its destructor waits for a read under way.
class Prefetcher {
 public:
  // `indices` are cut into batches of `batch_samples`; the last may be shorter.
  Prefetcher(const Dataset* dataset, std::vector<uint32_t> indices, size_t batch_samples, Lane* lane);
  ~Prefetcher();

  // Moves the next batch to `batch`; false at the end.
  bool Next(Batch* batch);

 private:
  void ReadNext();

  const Dataset* dataset_;
  const std::vector<uint32_t> indices_;
  const size_t batch_samples_;
  Lane* lane_;
  size_t position_ = 0;  // Of the next batch to read; caller's thread only.

  Mutex mu_;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool ready_ ABSL_GUARDED_BY(mu_) = false;
  Batch next_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
