#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/storage/object_store.h"

namespace recon {

// Marks a store as that of a job, with an object "jobs/<16 hexadecimal digits>" that stays: two jobs would
// collect each other's packs. For stores that cannot be locked as a directory can.
//
// FailedPrecondition if it is another job's. Of two that come at once at most one gets it, perhaps neither.
absl::Status ClaimForJob(ObjectStore* store, uint64_t job_id);

}  // namespace recon
