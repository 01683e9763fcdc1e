#include "tools/bench/step_load.h"

#include <atomic>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/lane.h"
#include "common/base/limits.h"
#include "common/base/process.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "common/rpc/grpc_tuning.h"
#include "common/rpc/poller_limit.h"
#include "common/tensor/param_layout.h"
#include "nlohmann/json.hpp"
#include "worker/comm/frames.h"
#include "worker/comm/replica.h"
#include "worker/comm/server_connections.h"
#include "worker/comm/session.h"

namespace recon {
namespace {

// More than any run has: one lease is enough.
constexpr uint64_t kSamples = 1'000'000;
constexpr absl::Duration kPoll = absl::Milliseconds(20);
constexpr absl::Duration kDeadline = absl::Minutes(2);

absl::Status SendZeros(const ParamLayout& layout, const Session& session, ParamClient* client) {
  const std::vector<EncodedShard> shards = PlainShards(layout, std::vector<float>(layout.params()));
  for (const auto& reply : client->CallAll(
           FrameKind::kInit,
           FramesFor(layout, FrameHeader(), session.standing().identity, shards, client->server_of_shard()),
           kDeadline)) {
    RECON_RETURN_IF_ERROR(reply.status());
  }
  return absl::OkStatus();
}

absl::StatusOr<Session::HeldLeasePtr> TakeLease(const ParamLayout& layout, Session* session,
                                                ParamClient* client) {
  while (true) {
    RECON_ASSIGN_OR_RETURN(const Session::Acquired acquired, session->Acquire());
    if (acquired.initial_values_wanted) RECON_RETURN_IF_ERROR(SendZeros(layout, *session, client));
    if (acquired.lease != nullptr) return acquired.lease;
    Sleep(kPoll);
  }
}

}  // namespace

absl::Status RunStepLoad(const StepLoadOptions& options) {
  TuneProcess();
  TuneGrpc();
  const PollerLimit poller_limit;
  ModelSpec model;
  model.set_name(absl::StrCat("load-", options.parameters));
  TensorSpec* tensor = model.add_tensors();
  tensor->set_name("weights");
  tensor->add_shape(options.parameters);
  RECON_ASSIGN_OR_RETURN(const ParamLayout layout, ParamLayout::Create(model));

  TlsFlags tls;
  tls.insecure = true;
  ServerConnections::Options connection_options;
  connection_options.head = options.server;
  connection_options.tls = tls;
  connection_options.connections = options.connections;
  ServerConnections servers(connection_options, &layout);
  RECON_ASSIGN_OR_RETURN(const auto channel, ConnectTo(options.server, tls));
  RECON_ASSIGN_OR_RETURN(const Caller caller, CallerFor(tls));
  ControlClient control(channel, ControlClient::kDeadline, caller);
  Session::Options session_options;
  session_options.name = options.name;
  session_options.model = model;
  session_options.train_samples = kSamples;
  session_options.test_samples = 1;
  session_options.device = "none";
  session_options.codec = "fp32";
  session_options.simulated = true;
  session_options.adopt_servers = [&](const RegisterReply& reply) { return servers.Adopt(reply); };
  session_options.adopt_workers = [&](uint32_t workers) { servers.ShareWith(workers); };
  const std::atomic<bool> stop{false};
  RECON_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         Session::Join(session_options, &control, &stop));
  ParamClient* client = servers.client();
  RECON_ASSIGN_OR_RETURN(const Session::HeldLeasePtr lease, TakeLease(layout, session.get(), client));

  const std::vector<EncodedShard> gradient = PlainShards(layout, std::vector<float>(layout.params(), 1e-3f));
  Replica replica(&layout);
  Lane adopting("adopting");
  std::vector<EncodedShard> shards = gradient;
  for (EncodedShard& shard : shards) shard.version = 0;
  nlohmann::ordered_json seconds = nlohmann::ordered_json::array();
  for (int i = 0; i < options.steps; ++i) {
    const absl::Time start = Now();
    FrameHeader header;
    header.step = session->TakeStep().value();  // Never more than one is under way.
    header.order_key = lease->task.begin();
    header.samples = 1;
    absl::Status adopted;
    const auto adopt = [&](Frame parameters) {
      adopting.Post([&, parameters = std::move(parameters)] { adopted.Update(replica.Adopt(parameters)); });
    };
    const auto replies = client->CallAll(
        FrameKind::kPushPull,
        FramesFor(layout, header, session->standing().identity, shards, client->server_of_shard()), kDeadline,
        adopt);
    adopting.RunAndWait([] {});  // All are adopted.
    for (const auto& reply : replies) RECON_RETURN_IF_ERROR(reply.status());
    RECON_RETURN_IF_ERROR(adopted);
    session->Acknowledge(header.step);
    seconds.push_back(absl::ToDoubleSeconds(Now() - start));
  }
  session->Leave("finished");
  std::cout << seconds.dump() << std::endl;
  return absl::OkStatus();
}

}  // namespace recon
