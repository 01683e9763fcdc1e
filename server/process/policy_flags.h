#pragma once

#include <vector>

#include "common/cli/flag_table.h"
#include "proto/control.pb.h"

namespace recon {

// The flags that say how workers agree, of a server and of `reconctl policy set`: what is given goes to
// `settings`, which must outlive the table. What they say together ResolvePolicy() checks.
std::vector<Flag> PolicyFlagRows(PolicySettings* settings);

}  // namespace recon
