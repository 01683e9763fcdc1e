#pragma once

#include <atomic>

#include "absl/status/status.h"
#include "worker/process/worker_flags.h"

namespace recon {

// A whole recon-worker, from opening its data to leaving the job. Ends when the job is finished or `stop`
// becomes true. InvalidArgument, NotFound and DataLoss are the caller's to mend.
absl::Status RunWorker(const WorkerFlags& flags, const std::atomic<bool>* stop);

}  // namespace recon
