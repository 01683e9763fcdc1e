#include "worker/comm/reconstruct.h"

#include <cstdint>
#include <vector>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "worker/comm/peer_source.h"
#include "worker/comm/snapshot_source.h"

namespace recon {
namespace {

uint64_t PayloadBytes(const std::vector<Frame>& replies) {
  uint64_t bytes = 0;
  for (const Frame& reply : replies) bytes += reply.header.payload_bytes;
  return bytes;
}

absl::Status FromStore(const SnapshotOffer& offer, const ParamLayout& layout, CommPipeline* pipeline,
                       Replica* replica) {
  const absl::Time start = Now();
  const absl::StatusOr<uint64_t> read = ReadSnapshot(offer, layout, replica);
  if (!read.ok()) {
    LogWarn("all parameters come from the server: {}", read.status().message());
    return PullParameters(pipeline, replica);
  }
  CommPipeline::Known known;
  known.versions = replica->versions();
  known.cluster_epoch = replica->cluster_epoch();
  RECON_ASSIGN_OR_RETURN(const std::vector<Frame> replies, pipeline->PullAll(known));
  LogInfo(
      "parameters: {} bytes from snapshot {} of {}, {} bytes that changed since from the server, in {:.2f} s",
      *read, offer.generation.value(), offer.store, PayloadBytes(replies),
      absl::ToDoubleSeconds(Now() - start));
  for (const Frame& reply : replies) RECON_RETURN_IF_ERROR(replica->Adopt(reply));
  return absl::OkStatus();
}

absl::Status FromWorkers(const PeerOffer& peers, const TlsFlags& tls, const ParamLayout& layout,
                         const std::function<bool()>& stopped, CommPipeline* pipeline, Replica* replica) {
  const absl::Time start = Now();
  const absl::StatusOr<PeersRead> read = ReadPeers(peers, tls, layout, stopped, replica);
  if (absl::IsCancelled(read.status())) return read.status();
  if (!read.ok()) {
    LogWarn("all parameters come from the server: {}", read.status().message());
    return PullParameters(pipeline, replica);
  }
  CommPipeline::Known known;
  for (uint32_t shard = 0; shard < layout.shard_count(); ++shard) {
    known.hashes.push_back(replica->HashShard(shard));
  }
  RECON_ASSIGN_OR_RETURN(const std::vector<Frame> replies, pipeline->PullAll(known));
  LogInfo("parameters: {} bytes from {} other workers, {} bytes that differ from the server, in {:.2f} s",
          read->bytes, read->peers, PayloadBytes(replies), absl::ToDoubleSeconds(Now() - start));
  for (const Frame& reply : replies) RECON_RETURN_IF_ERROR(replica->TakeCorrections(reply));
  return absl::OkStatus();
}

}  // namespace

absl::Status PullParameters(CommPipeline* pipeline, Replica* replica) {
  RECON_ASSIGN_OR_RETURN(const std::vector<Frame> replies, pipeline->PullAll({}));
  for (const Frame& reply : replies) RECON_RETURN_IF_ERROR(replica->Adopt(reply));
  return absl::OkStatus();
}

absl::Status Reconstruct(ParameterSource source, const TlsFlags& tls, const ParamLayout& layout,
                         const Session& session, const std::function<bool()>& stopped, CommPipeline* pipeline,
                         Replica* replica) {
  switch (source) {
    case ParameterSource::kStore:
      if (!session.snapshot_offer().store.empty()) {
        return FromStore(session.snapshot_offer(), layout, pipeline, replica);
      }
      LogInfo("all parameters come from the server: there is no snapshot yet");
      break;
    case ParameterSource::kWorkers:
      if (!session.peers().addresses.empty()) {
        return FromWorkers(session.peers(), tls, layout, stopped, pipeline, replica);
      }
      LogInfo("all parameters come from the server: no other worker hands out its own");
      break;
    case ParameterSource::kServer:
      break;
  }
  return PullParameters(pipeline, replica);
}

}  // namespace recon
