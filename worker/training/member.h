#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/metrics/metrics.h"
#include "common/rpc/control_client.h"
#include "common/rpc/credentials.h"
#include "common/rpc/trace_reporter.h"
#include "common/rpc/wire_bytes.h"
#include "common/tensor/param_layout.h"
#include "common/transport/worker_secret.h"
#include "common/web/http_server.h"
#include "worker/comm/replica.h"
#include "worker/comm/replica_server.h"
#include "worker/comm/server_connections.h"
#include "worker/comm/session.h"
#include "worker/encode/codec_policy.h"
#include "worker/encode/gradient_space.h"
#include "worker/machine/device_watch.h"
#include "worker/training/trainer.h"

namespace recon {

// One worker of a job: its standing with the server, its connections, its copy of the parameters and its
// trainer, made and ended in the right order. Nothing of it is process-wide: a library may use it.
//
// Threads: Join(), trainer(), Leave() and the destructor on the training thread; RequestStop() and Fail() on
// any.
class Member {
 public:
  struct Options {
    std::string server = LoopbackAddress(kDefaultPort);
    TlsFlags tls;
    std::string name;  // Empty: one is drawn, <host>-<random>.
    ModelSpec model;
    uint64_t train_samples = 0;
    uint64_t test_samples = 0;     // 0: there are no evaluations.
    std::string data_fingerprint;  // See Fingerprint() in worker/data/dataset.h; empty: nothing is said.
    std::vector<FlagValue> proposed;
    bool simulated = false;
    std::string precision;  // What it computes in, as heartbeats say; empty: they do not.
    CodecPolicy::Options codec;
    EncoderOptions encoder;
    int depth = 2;
    uint32_t accumulate = 1;
    int connections = limits::kDataConnections;
    bool shared_memory = true;
    bool ucx = false;
    std::string serve_parameters;  // host:port; empty: it does not.
    ParameterSource parameters_from = ParameterSource::kServer;
    absl::Duration reconnect_for = absl::Minutes(10);
    std::string metrics_address;
  };

  // Connects and registers, trying again while the server cannot be reached, until `stop`. `space` and `stop`
  // must outlive the member; the space is bound here. InvalidArgument, NotFound and DataLoss are the caller's
  // to mend.
  static absl::StatusOr<std::unique_ptr<Member>> Join(const Options& options, GradientSpace* space,
                                                      const std::atomic<bool>* stop);
  // Ends without a word, if Leave() was not called: the server notices by silence.
  ~Member();

  Trainer* trainer() { return trainer_.get(); }
  Session* session() { return session_.get(); }
  const ParamLayout& layout() const { return *layout_; }
  CodecPolicy* policy() { return policy_.get(); }
  // How the device is that the space is on. Any thread.
  std::optional<DeviceStatus> device() const { return device_watch_->Latest(Now()); }

  // Whatever waits ends soon, with this error.
  void Fail(const absl::Status& status) { session_->Fail(status); }
  // Ends after what is under way; where that takes too long, by Fail(). Once it was asked for, the trainer
  // begins nothing new.
  void RequestStop();
  // Says goodbye. `status` is how training ended; returns it, or the reason behind it. Nothing of the trainer
  // may be used after it.
  absl::Status Leave(const absl::Status& status);

 private:
  Member(const Options& options, GradientSpace* space) : options_(options), space_(space) {}
  absl::Status Open(const std::atomic<bool>* stop);
  Session::Options MakeSessionOptions();
  void Describe(WorkerProgress* progress);
  void EndWatch();

  const Options options_;
  const WorkerSecret secret_ = WorkerSecret::Draw();
  GradientSpace* const space_;
  std::unique_ptr<ParamLayout> layout_;
  std::unique_ptr<Replica> replica_;
  Metrics metrics_;
  std::unique_ptr<HttpServer> metrics_server_;
  std::unique_ptr<ReplicaServer> replica_server_;
  std::unique_ptr<CodecPolicy> policy_;
  std::unique_ptr<ServerConnections> servers_;
  WireByteCounter wire_counter_;
  prometheus::Gauge* wire_sent_ = nullptr;
  prometheus::Gauge* wire_received_ = nullptr;
  std::unique_ptr<TraceReporter> traces_;  // The session calls it.
  std::unique_ptr<ControlClient> control_;
  std::unique_ptr<DeviceWatch> device_watch_;  // Heartbeats ask it.
  std::unique_ptr<Session> session_;
  std::unique_ptr<Trainer> trainer_;

  Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::thread stopping_ ABSL_GUARDED_BY(mu_);  // Once a stop was asked for.
};

}  // namespace recon
