#include "worker/comm/replica_server.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/secret.h"
#include "common/base/status_macros.h"
#include "common/codec/frame.h"
#include "common/rpc/sender.h"

namespace recon {

absl::StatusOr<std::unique_ptr<ReplicaServer>> ReplicaServer::Start(const std::string& address,
                                                                    const TlsFlags& tls,
                                                                    const ParamLayout* layout,
                                                                    const Replica* replica,
                                                                    Metrics* metrics) {
  std::unique_ptr<ReplicaServer> server(new ReplicaServer(layout, replica, metrics));
  RECON_ASSIGN_OR_RETURN(server->rpc_, RpcServer::Start("--serve-parameters", address, tls,
                                                        {&server->service_}, &server->connections_));
  return server;
}

ReplicaServer::ReplicaServer(const ParamLayout* layout, const Replica* replica, Metrics* metrics)
    : layout_(layout),
      replica_(replica),
      bytes_(metrics->Counter("recon_worker_served_bytes_total",
                              "Payload bytes of parameters sent to workers that join")),
      service_([this](const ByteChain& request, const TakenCallback& /*taken*/, Transport::Done done,
                      const RequestContext& /*context*/) { done(Answer(request)); },
               /*connected=*/nullptr, &connections_, /*is_member=*/nullptr,
               [this](const grpc::CallbackServerContext& context) { return Admit(TokenOf(context)); }) {}

ReplicaServer::~ReplicaServer() {
  service_.Close();
  if (rpc_ != nullptr) rpc_->Shutdown(absl::ZeroDuration());
}

void ReplicaServer::SetToken(const std::string& token) {
  MutexLock lock(&mu_);
  token_ = token;
}

absl::Status ReplicaServer::Admit(const std::string& token) const {
  MutexLock lock(&mu_);
  if (!token_.empty() && SameSecret(token, token_)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      "parameters are for workers of the same job: the caller has not shown the token that its head gives "
      "them");
}

absl::StatusOr<ByteChain> ReplicaServer::Answer(const ByteChain& request) const {
  RECON_ASSIGN_OR_RETURN(Frame frame, DecodeFrame(request));
  if (frame.header.kind != static_cast<uint8_t>(FrameKind::kPull)) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame: kind is ", frame.header.kind, "; a worker is asked for its parameters only"));
  }
  uint64_t bytes_max = kFrameHeaderBytes + frame.parts.size() * kPartHeaderBytes;
  for (const PartHeader& part : frame.parts) {
    if (part.shard >= layout_->shard_count() || part.count != layout_->shards()[part.shard].size) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard ", part.shard, " of ", part.count, " values is not of this worker's model"));
    }
    bytes_max += EncodedBytes(CodecId::kFp32, part.count);
    if (bytes_max > limits::kFrameBytesMax) {
      return absl::InvalidArgumentError("the reply would be too large: ask for fewer shards at a time");
    }
  }
  Frame reply;
  reply.header = frame.header;
  reply.header.kind = static_cast<uint8_t>(FrameKind::kReply);
  for (const PartHeader& asked : frame.parts) {
    std::optional<Replica::Values> values = replica_->EncodeShard(asked.shard);
    if (!values) return absl::UnavailableError("this worker has no parameters yet");
    PartHeader part;
    part.shard = asked.shard;
    part.codec = static_cast<uint8_t>(values->codec);
    part.count = asked.count;
    part.version = values->version;
    reply.parts.push_back(part);
    bytes_.Increment(static_cast<double>(values->payload.size()));
    reply.payloads.push_back(std::move(values->payload));
  }
  return EncodeFrame(std::move(reply));
}

}  // namespace recon
