#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/tensor/param_layout.h"
#include "proto/manifest.pb.h"
#include "server/cluster/servers_state.h"

// Whether the servers of a job are of one state. Each restores its shards by itself, from snapshot and log. A
// server whose log is gone has the snapshot alone, and others may have gone on from there. Pure.
namespace recon {

// The oldest snapshot of those that have lost something; none if nobody has.
std::optional<uint64_t> OldestOfLost(const std::vector<PlaceState>& servers);
// Those that have more than that snapshot, in their order.
std::vector<uint32_t> AheadOf(const Manifest& snapshot, const std::vector<PlaceState>& servers);

// Unavailable if the servers' parts of a snapshot are of two states of the workers, where these have the
// optimizer.
absl::Status CheckOneState(const ParamLayout& layout, absl::Span<const Manifest> parts);

}  // namespace recon
