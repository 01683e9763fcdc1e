#include "worker/comm/peer_source.h"

#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/lane.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/caller.h"
#include "common/rpc/grpc_transport.h"
#include "common/tensor/shard_assignment.h"
#include "worker/comm/frames.h"
#include "worker/comm/param_client.h"

namespace recon {
namespace {

// The servers have everything, too: so long without a reply is too long.
constexpr absl::Duration kSilenceMax = absl::Seconds(3);

}  // namespace

absl::StatusOr<PeersRead> ReadPeers(const PeerOffer& peers, const TlsFlags& tls, const ParamLayout& layout,
                                    const std::function<bool()>& stopped, Replica* replica) {
  std::vector<std::shared_ptr<Transport>> transports;
  std::vector<std::string> reached;
  for (const std::string& peer : peers.addresses) {
    absl::StatusOr<std::unique_ptr<Transport>> transport = ConnectForFrames(
        peer, tls, /*connections=*/1, std::make_shared<SendWindow>(/*servers=*/1, /*connections=*/1),
        Caller{"", peers.token});
    if (!transport.ok()) {
      LogWarn("worker at {}: {}", peer, transport.status().message());
      continue;
    }
    transports.push_back(*std::move(transport));
    reached.push_back(peer);
  }
  if (reached.empty()) return absl::UnavailableError("no other worker hands out its parameters");
  ParamClient client(AssignShards(layout, static_cast<uint32_t>(reached.size())));
  client.Connect(std::move(transports));

  FrameHeader header;
  header.reply_codec = static_cast<uint8_t>(CodecId::kFp32);  // At most.
  const std::vector<EncodedShard> shards(layout.shard_count());
  std::vector<Frame> frames = FramesFor(layout, header, WorkerIdentity(), shards, client.server_of_shard());
  std::vector<uint32_t> asked;
  asked.reserve(frames.size());
  for (const Frame& frame : frames) {
    asked.push_back(client.server_of_shard()[frame.parts.front().shard]);
  }
  std::vector<absl::Status> failures(reached.size());
  std::set<uint32_t> gave;
  uint64_t bytes = 0;
  const auto take = [&](const Frame& reply) {
    if (stopped()) client.Disconnect();
    const uint32_t shard = reply.parts.front().shard;
    const absl::Status taken = replica->TakeUnchecked(reply);
    if (shard >= client.server_of_shard().size()) return;  // Of another model: nothing was taken.
    const uint32_t peer = client.server_of_shard()[shard];
    failures[peer].Update(taken);
    if (!taken.ok()) return;
    gave.insert(peer);
    bytes += reply.header.payload_bytes;
  };
  auto taking = std::make_unique<Lane>("peer-replies");
  const std::vector<absl::StatusOr<Frame>> replies = client.CallAll(
      FrameKind::kPull, std::move(frames),
      FrameDeadline(EncodedBytes(CodecId::kFp32, layout.params()), absl::ZeroDuration()),
      [&](Frame reply) { taking->Post([&take, reply = std::move(reply)] { take(reply); }); }, kSilenceMax);
  taking = nullptr;  // All are taken.
  if (stopped()) return absl::CancelledError("the worker is stopping");
  for (size_t i = 0; i < replies.size(); ++i) failures[asked[i]].Update(replies[i].status());
  for (size_t i = 0; i < reached.size(); ++i) {
    if (!failures[i].ok()) {
      LogWarn("worker at {} does not give its parameters, or not all of them: {}", reached[i],
              failures[i].message());
    }
  }
  if (bytes == 0) {
    return absl::UnavailableError(absl::StrCat("no parameters came from ", absl::StrJoin(reached, ", ")));
  }
  return PeersRead{bytes, gave.size()};
}

}  // namespace recon
