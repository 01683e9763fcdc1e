#include "server/cluster/report_checks.h"

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"

namespace recon {
namespace {

constexpr size_t kTicketKeyBytesMax = 64;

absl::Status CheckShard(uint32_t shard, uint32_t place, absl::Span<const uint32_t> server_of_shard,
                        const char* what) {
  if (shard >= server_of_shard.size()) {
    return absl::InvalidArgumentError(absl::StrCat("server ", place, " reports ", what, " of shard ", shard,
                                                   ", the model has ", server_of_shard.size()));
  }
  if (server_of_shard[shard] == place) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("server ", place, " reports ", what, " of shard ", shard,
                                                 ", which server ", server_of_shard[shard], " has"));
}

}  // namespace

absl::Status CheckHello(const ServerHello& hello, uint64_t job_id) {
  if (hello.server_id() == 0 || hello.address().empty()) {
    return absl::InvalidArgumentError("a server without number or address");
  }
  if (hello.ticket_key().size() > kTicketKeyBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a server's key for tickets of ", hello.ticket_key().size(), " bytes, at most ", kTicketKeyBytesMax));
  }
  if (hello.job_id() != 0 && hello.job_id() != job_id) {
    return absl::FailedPreconditionError(absl::StrCat("its --data is of job ", absl::Hex(hello.job_id()),
                                                      ", this is job ", absl::Hex(job_id)));
  }
  return absl::OkStatus();
}

absl::Status CheckReady(const ServerReady& ready) {
  if (ready.cluster_epoch() <= limits::kClusterEpochMax && ready.frontier_step() <= limits::kStepMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("a server at cluster epoch ", ready.cluster_epoch(),
                                                 " and step ", ready.frontier_step(), ", allowed are ",
                                                 limits::kClusterEpochMax, " and ", limits::kStepMax));
}

absl::Status CheckProgress(const ServerProgress& progress, const ServerProgress& before) {
  if (progress.sequence() < before.sequence()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a server's sequence goes back from ", before.sequence(), " to ", progress.sequence()));
  }
  if (progress.frontier_step() > limits::kStepMax) {
    return absl::InvalidArgumentError(absl::StrCat("a server's first open step is ", progress.frontier_step(),
                                                   ", allowed are ", limits::kStepMax));
  }
  return absl::OkStatus();
}

absl::Status CheckDelivered(const PushDelivered& push, uint32_t place,
                            absl::Span<const uint32_t> server_of_shard) {
  for (const uint32_t shard : push.shards()) {
    if (const absl::Status ours = CheckShard(shard, place, server_of_shard, "parts"); !ours.ok()) return ours;
  }
  if (push.push_parts() > 0 && push.push_parts() <= server_of_shard.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("server ", place, " reports a push of ", push.push_parts(),
                                                 " parts, the model has ", server_of_shard.size(),
                                                 " shards"));
}

absl::Status CheckPart(const SnapshotPart& part, uint32_t place, absl::Span<const uint32_t> server_of_shard) {
  for (const ShardEntry& shard : part.part().shards()) {
    const absl::Status ours = CheckShard(shard.shard(), place, server_of_shard, "a snapshot's part");
    if (!ours.ok()) return ours;
  }
  return absl::OkStatus();
}

}  // namespace recon
