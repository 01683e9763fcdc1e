#pragma once

#include "common/cli/flag_table.h"
#include "server/process/server_flags.h"

namespace recon {

// Of --split-samples: the largest split.
inline constexpr uint32_t kSplitSamplesMax = 1 << 30;

// The flags of recon-server, each with what is wrong about its value alone. `flags` must outlive the table.
FlagTable ServerFlagTable(ServerFlags* flags);

}  // namespace recon
