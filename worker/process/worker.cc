#include "worker/process/worker.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/metrics/metrics.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "common/rpc/tls_probe.h"
#include "common/rpc/wire_bytes.h"
#include "worker/comm/replica.h"
#include "worker/comm/replica_server.h"
#include "worker/comm/server_connections.h"
#include "worker/comm/session.h"
#include "worker/training/train_loop.h"

namespace recon {
namespace {

constexpr absl::Duration kStopPoll = absl::Milliseconds(50);
// What is under way may take so long once a stop was asked for.
constexpr absl::Duration kStopTimeout = absl::Seconds(10);

// Host and process number alone may be another worker's: containers share a host's name and have numbers of
// their own.
std::string DrawWorkerName() {
  char host[128] = "worker";
  gethostname(host, sizeof(host) - 1);
  return absl::StrCat(host, "-", absl::Hex(RandomNonZero() & 0xffffffff, absl::kZeroPad8));
}

}  // namespace

absl::Status RunWorker(const WorkerFlags& flags, const std::atomic<bool>* stop) {
  RECON_ASSIGN_OR_RETURN(const auto channel, ConnectTo(flags.server, flags.tls));
  RECON_ASSIGN_OR_RETURN(const TrainAndTest data, OpenDataset(flags.data));
  ModelOptions model = flags.model;
  model.features = data.train->features();
  model.classes = data.train->classes();
  RECON_ASSIGN_OR_RETURN(const std::unique_ptr<ModelBackend> backend, MakeBackend(model));
  ModelSpec spec = backend->spec();
  RECON_RETURN_IF_ERROR(AssignGroups(flags.tensor_groups, &spec));
  RECON_ASSIGN_OR_RETURN(const ParamLayout layout, ParamLayout::Create(spec));
  backend->Bind(&layout);
  Replica replica(&layout);
  Metrics metrics;
  if (!flags.metrics_address.empty()) RECON_RETURN_IF_ERROR(metrics.Serve(flags.metrics_address));

  std::unique_ptr<ReplicaServer> replica_server;
  if (!flags.serve_parameters.empty()) {
    RECON_ASSIGN_OR_RETURN(
        replica_server, ReplicaServer::Start(flags.serve_parameters, flags.tls, &layout, &replica, &metrics));
  }

  Session::Options session_options;
  if (replica_server != nullptr) session_options.serves = replica_server->address();
  session_options.name = flags.name.empty() ? DrawWorkerName() : flags.name;
  if (flags.name.empty()) session_options.draw_name = DrawWorkerName;
  session_options.model = spec;
  session_options.train_samples = data.train->size();
  session_options.test_samples = data.test->size();
  session_options.device = backend->device();
  CodecPolicy::Options policy_options = flags.codec;
  policy_options.feedback = flags.encoder.feedback;
  policy_options.depth = flags.depth;
  CodecPolicy policy(policy_options, &layout);

  session_options.codec = policy.Describe().substr(0, limits::kNameBytesMax);
  ServerConnections::Options connection_options;
  connection_options.head = flags.server;
  connection_options.tls = flags.tls;
  connection_options.connections = flags.connections;
  connection_options.shared_memory = flags.shared_memory;
  connection_options.ucx = flags.ucx;
  ServerConnections servers(connection_options, &layout);
  session_options.adopt_servers = [&](const RegisterReply& reply) { return servers.Adopt(reply); };
  session_options.adopt_workers = [&](uint32_t workers) { servers.ShareWith(workers); };
  WireByteCounter wire_counter;
  prometheus::Gauge& wire_sent =
      metrics.Gauge("recon_worker_wire_sent_bytes", "Bytes sent to servers, headers of the network included");
  prometheus::Gauge& wire_received =
      metrics.Gauge("recon_worker_wire_received_bytes", "Bytes received from servers, headers included");
  session_options.describe = [&](WorkerProgress* progress) {
    progress->set_codec(policy.Describe().substr(0, limits::kProgressTextBytesMax));
    *progress->mutable_step_work() = policy.work();
    progress->mutable_step_work()->set_shares_memory(servers.SharesMemory());
    if (progress->residual_norm() > 0) {
      progress->set_residual_age_seconds(absl::ToDoubleSeconds(policy.residual_age(Now())));
    }
    const WireBytes wire = wire_counter.Sample(servers.ports());
    progress->set_wire_sent_bytes(wire.sent);
    progress->set_wire_received_bytes(wire.received);
    progress->set_wire_unix_ms(absl::ToUnixMillis(Now()));
    wire_sent.Set(static_cast<double>(wire.sent));
    wire_received.Set(static_cast<double>(wire.received));
  };
  session_options.adopt_codec = [&](const CodecChoice& choice) { policy.Adopt(choice); };
  session_options.on_silence = [&] {
    LogWarn("the server is silent: its connections are cut");
    servers.Disconnect();
  };
  session_options.simulated =
      backend->simulated() || flags.step_time > absl::ZeroDuration() || flags.slow_factor > 1;
  session_options.reconnect_for = flags.reconnect_for;
  session_options.diagnose = [&flags] { return ProbeTls(flags.server, flags.tls); };
  ControlClient control(channel);
  RECON_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         Session::Join(session_options, &control, stop));
  LogInfo("{} on {}{}, {} parameters, codec {}", session->name(), backend->device(),
          session_options.simulated ? " (simulated)" : "", layout.params(), policy.Describe());

  RECON_RETURN_IF_ERROR(policy.Restrict(session->job()->refused_codecs()));
  TrainLoop::Options options;
  options.depth = flags.depth;
  options.encoder = flags.encoder;
  options.accumulate = flags.accumulate;
  options.slow_factor = flags.slow_factor;
  options.step_time = flags.step_time;
  options.parameters_from = flags.parameters_from;
  options.tls = flags.tls;
  absl::Status status;
  {
    TrainLoop loop(options, &layout, backend.get(), &policy, &data, servers.client(), session.get(), &replica,
                   &metrics);
    std::atomic<bool> ended{false};
    std::thread watcher([&] {
      while (!ended.load() && !stop->load()) absl::SleepFor(kStopPoll);
      loop.RequestStop();
      const absl::Time give_up = Now() + kStopTimeout;
      while (!ended.load() && Now() < give_up) absl::SleepFor(kStopPoll);
      if (ended.load()) return;
      session->Fail(absl::DeadlineExceededError("stopped with pushes under way"));
      servers.Disconnect();
    });
    status = loop.Run();
    ended.store(true);
    watcher.join();
    if (absl::IsCancelled(status) && !session->fatal().ok()) status = session->fatal();
    // Pushes under way end now: nobody would wait for them.
    if (!status.ok()) {
      session->Fail(status);
      servers.Disconnect();
    }
  }
  if (!status.ok() && stop->load() && (absl::IsCancelled(status) || absl::IsDeadlineExceeded(status))) {
    LogWarn("{}", status.message());
    status = absl::OkStatus();
  }
  const bool finished = status.ok() && !stop->load();
  LogInfo("{}: {} steps, {} samples", finished ? "job finished" : "stopping",
          session->counters()->steps.load(), session->counters()->samples.load());
  session->Leave(finished ? "finished" : status.ok() ? "stopped" : "failed");
  return status;
}

}  // namespace recon
