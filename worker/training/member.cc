#include "worker/training/member.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "common/rpc/tls_probe.h"
#include "common/web/metrics_server.h"

namespace recon {
namespace {

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

absl::StatusOr<std::unique_ptr<Member>> Member::Join(const Options& options, GradientSpace* space,
                                                     const std::atomic<bool>* stop) {
  std::unique_ptr<Member> member(new Member(options, space));
  RECON_RETURN_IF_ERROR(member->Open(stop));
  return member;
}

absl::Status Member::Open(const std::atomic<bool>* stop) {
  RECON_ASSIGN_OR_RETURN(const auto channel, ConnectTo(options_.server, options_.tls));
  RECON_ASSIGN_OR_RETURN(ParamLayout layout, ParamLayout::Create(options_.model));
  layout_ = std::make_unique<ParamLayout>(std::move(layout));
  space_->Bind(layout_.get());
  replica_ = std::make_unique<Replica>(layout_.get());
  if (!options_.metrics_address.empty()) {
    RECON_ASSIGN_OR_RETURN(metrics_server_, ServeMetrics(options_.metrics_address, &metrics_));
  }
  if (!options_.serve_parameters.empty()) {
    RECON_ASSIGN_OR_RETURN(replica_server_, ReplicaServer::Start(options_.serve_parameters, options_.tls,
                                                                 layout_.get(), replica_.get(), &metrics_));
  }
  wire_sent_ = &metrics_.Gauge("recon_worker_wire_sent_bytes",
                               "Bytes sent to servers, headers of the network included");
  wire_received_ =
      &metrics_.Gauge("recon_worker_wire_received_bytes", "Bytes received from servers, headers included");
  CodecPolicy::Options policy_options = options_.codec;
  policy_options.feedback = options_.encoder.feedback;
  policy_options.depth = options_.depth;
  policy_ = std::make_unique<CodecPolicy>(policy_options, layout_.get());
  RECON_ASSIGN_OR_RETURN(Caller caller, CallerFor(options_.tls));
  caller.secret = std::string(secret_.bytes());
  ServerConnections::Options connection_options;
  connection_options.head = options_.server;
  connection_options.tls = options_.tls;
  connection_options.caller = caller;
  connection_options.connections = options_.connections;
  connection_options.shared_memory = options_.shared_memory;
  connection_options.ucx = options_.ucx;
  servers_ = std::make_unique<ServerConnections>(connection_options, layout_.get());
  traces_ = std::make_unique<TraceReporter>(channel, caller);
  control_ = std::make_unique<ControlClient>(channel, ControlClient::kDeadline, caller);
  device_watch_ =
      std::make_unique<DeviceWatch>([device = space_->device()] { return MakeDeviceMonitor(device); });
  RECON_ASSIGN_OR_RETURN(session_, Session::Join(MakeSessionOptions(), control_.get(), stop));
  LogInfo("{} on {}{}, {} parameters, codec {}", session_->name(), space_->device(),
          options_.simulated ? " (simulated)" : "", layout_->params(), policy_->Describe());
  RECON_RETURN_IF_ERROR(policy_->Restrict(session_->job()->refused_codecs()));
  Trainer::Options trainer_options;
  trainer_options.depth = options_.depth;
  trainer_options.encoder = options_.encoder;
  trainer_options.accumulate = options_.accumulate;
  trainer_options.parameters_from = options_.parameters_from;
  trainer_options.tls = options_.tls;
  trainer_options.train_samples = options_.train_samples;
  trainer_ = std::make_unique<Trainer>(trainer_options, layout_.get(), space_, policy_.get(),
                                       servers_->client(), session_.get(), replica_.get(), &metrics_);
  return absl::OkStatus();
}

Session::Options Member::MakeSessionOptions() {
  Session::Options options;
  if (replica_server_ != nullptr) options.serves = replica_server_->address();
  options.head = options_.server;
  options.name = options_.name.empty() ? DrawWorkerName() : options_.name;
  if (options_.name.empty()) options.draw_name = DrawWorkerName;
  options.incarnation = secret_.incarnation();
  options.model = options_.model;
  options.train_samples = options_.train_samples;
  options.data_fingerprint = options_.data_fingerprint;
  options.test_samples = options_.test_samples;
  options.proposed = options_.proposed;
  options.device = space_->device();
  options.codec = policy_->Describe().substr(0, limits::kNameBytesMax);
  options.adopt_servers = [this](const RegisterReply& reply) {
    if (replica_server_ != nullptr) replica_server_->SetToken(reply.peers_token());
    return servers_->Adopt(reply);
  };
  options.adopt_workers = [this](uint32_t workers) { servers_->ShareWith(workers); };
  options.servers_away = [this] {
    ParamClient* known = servers_->client();
    return known == nullptr ? ServerWatch::Missing() : known->Away(Now());
  };
  options.describe = [this](WorkerProgress* progress) { Describe(progress); };
  options.follow_trace = [this](const HeartbeatReply& reply, const std::string& name, uint32_t worker) {
    traces_->Follow(reply.trace(), absl::Milliseconds(reply.trace_left_ms()),
                    DescribeMember(TRACE_ROLE_WORKER, name, worker));
  };
  options.adopt_codec = [this](const CodecChoice& choice) { policy_->Adopt(choice); };
  options.on_silence = [this] {
    LogWarn("the server is silent: its connections are cut");
    servers_->Disconnect();
  };
  options.on_failure = [this] { servers_->Disconnect(); };
  options.simulated = options_.simulated;
  options.reconnect_for = options_.reconnect_for;
  options.diagnose = [this] { return ProbeTls(options_.server, options_.tls); };
  return options;
}

// Heartbeat thread.
void Member::Describe(WorkerProgress* progress) {
  progress->set_codec(policy_->Describe().substr(0, limits::kProgressTextBytesMax));
  *progress->mutable_step_work() = policy_->work();
  progress->set_precision(options_.precision);
  if (const std::optional<DeviceStatus> status = device()) *progress->mutable_device_status() = *status;
  progress->mutable_step_work()->set_shares_memory(servers_->SharesMemory());
  if (progress->residual_norm() > 0) {
    progress->set_residual_age_seconds(absl::ToDoubleSeconds(policy_->residual_age(Now())));
  }
  const WireBytes wire = wire_counter_.Sample(servers_->ports());
  progress->set_wire_sent_bytes(wire.sent);
  progress->set_wire_received_bytes(wire.received);
  progress->set_wire_unix_ms(absl::ToUnixMillis(Now()));
  wire_sent_->Set(static_cast<double>(wire.sent));
  wire_received_->Set(static_cast<double>(wire.received));
}

void Member::RequestStop() {
  trainer_->RequestStop();
  MutexLock lock(&mu_);
  if (ended_ || stopping_.joinable()) return;
  stopping_ = std::thread([this] {
    {
      MutexLock waiting(&mu_);
      if (mu_.AwaitFor(kStopTimeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return ended_; })) return;
    }
    Fail(absl::DeadlineExceededError("stopped with pushes under way"));
  });
}

void Member::EndWatch() {
  std::thread stopping;
  {
    MutexLock lock(&mu_);
    ended_ = true;
    stopping = std::move(stopping_);
  }
  if (stopping.joinable()) stopping.join();
}

Member::~Member() {
  EndWatch();
  // Pushes under way end now: nobody waits for them.
  if (trainer_ != nullptr) Fail(absl::CancelledError("the worker ends"));
  trainer_ = nullptr;
}

absl::Status Member::Leave(const absl::Status& status) {
  EndWatch();
  absl::Status outcome = status;
  if (absl::IsCancelled(outcome) && !session_->fatal().ok()) outcome = session_->fatal();
  if (!outcome.ok()) Fail(outcome);
  const bool stopped = trainer_->stopping();
  trainer_ = nullptr;
  if (!outcome.ok() && stopped && (absl::IsCancelled(outcome) || absl::IsDeadlineExceeded(outcome))) {
    LogWarn("{}", outcome.message());
    outcome = absl::OkStatus();
  }
  const bool finished = outcome.ok() && !stopped;
  LogInfo("{}: {} steps, {} samples", finished ? "job finished" : "stopping",
          session_->counters()->steps.load(), session_->counters()->samples.load());
  session_->Leave(finished       ? "finished"
                  : outcome.ok() ? "stopped"
                                 : "failed",
                  absl::IsOutOfRange(outcome) ? std::string(outcome.message()) : "");
  return outcome;
}

}  // namespace recon
