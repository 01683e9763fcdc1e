#pragma once

#include <cstdint>
#include <vector>

#include "common/tensor/param_layout.h"

namespace recon {

// Which of a job's servers has which shard: element i is shard i's server, in [0, servers). Shards go, in
// order, to the server that has the fewest bytes so far: what each has differs by a shard at most, and
// neighbouring shards are on different servers, whose links all work at once. Every process computes it from
// model and number alone.
std::vector<uint32_t> AssignShards(const ParamLayout& layout, uint32_t servers);

}  // namespace recon
