#pragma once

#include "common/cli/flag_table.h"
#include "worker/process/worker_flags.h"

namespace recon {

// The flags of recon-worker, each with what is wrong about its value alone. `flags` must outlive the table.
FlagTable WorkerFlagTable(WorkerFlags* flags);

}  // namespace recon
