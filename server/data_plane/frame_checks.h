#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "server/data_plane/operation.h"
#include "server/data_plane/shard_map.h"

namespace recon {

// What a frame's own words say, and the model: whether it can be a pull, a push, or initial values. Pure
// functions; InvalidArgument names the value and what is allowed.

// The payload of part `index`. Reads all of it. `refused_codecs`: bit i for codec i.
absl::Status CheckContent(const Operation& op, size_t index, uint32_t refused_codecs);
// The parts are shards of this server, and their reply is no larger than a frame may be.
absl::Status CheckParts(const Operation& op, const ShardMap& map);
// The header of a push, and the versions that its parts name.
absl::Status CheckPushHeader(const Operation& op, const ShardMap& map);
// The push's parts that are on this server.
size_t PartsHere(const FrameHeader& header, const ShardMap& map);

}  // namespace recon
