#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/cluster.pb.h"

// What cannot be in a server's report, whoever sent it. InvalidArgument says what, with the numbers; whoever
// sent it is sent away, and nothing of the report is noted. Pure.
namespace recon {

// It has no number or no address. FailedPrecondition: its data directory is of another job.
absl::Status CheckHello(const ServerHello& hello, uint64_t job_id);
// Of a number that no job comes to.
absl::Status CheckReady(const ServerReady& ready);
// `before`: what came last on the same link, from the same process. Its log only grows.
absl::Status CheckProgress(const ServerProgress& progress, const ServerProgress& before);
// `server_of_shard`: which server has which of the model's shards; empty if there is no model yet.
absl::Status CheckDelivered(const PushDelivered& push, uint32_t place,
                            absl::Span<const uint32_t> server_of_shard);
absl::Status CheckPart(const SnapshotPart& part, uint32_t place, absl::Span<const uint32_t> server_of_shard);

}  // namespace recon
