#pragma once

#include <atomic>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "common/transport/worker_secret.h"
#include "server/process/recon_server.h"
#include "tests/integration/completed_once.h"
#include "tests/support/temp_dir.h"
#include "worker/process/worker.h"

namespace recon {

// Of the worker that only the test plays.
inline WorkerSecret PlayedSecret() { return *WorkerSecret::FromBytes("a played worker."); }

// A real server and real workers as threads of the test, over loopback: what sanitizers see whole.
class InProcessJob {
 public:
  explicit InProcessJob(int bound, int workers_min = 1) {
    flags.listen = "127.0.0.1:0";
    flags.data = directory / "data";
    flags.snapshots.directory = directory / "data/snapshots";
    flags.apply_threads = 2;
    flags.optimizer.kind = OptimizerKind::kSgd;  // Stands staleness: what it learns does not hang on timing.
    flags.optimizer.learning_rate = 0.1;
    flags.policy.set_sync(bound < 0 ? "asp" : bound == 0 ? "bsp" : absl::StrCat("ssp:", bound));
    flags.job.set_seed(1);
    flags.job.set_batch_samples(32);
    flags.job.set_data_epochs(2);
    flags.job.set_split_samples(100);
    flags.job.set_eval_split_samples(60);
    flags.job.set_workers_min(static_cast<uint32_t>(workers_min));
    flags.job.set_heartbeat_interval_ms(50);
    flags.job.set_lease_duration_ms(10'000);
    flags.snapshots.interval = absl::Milliseconds(200);
    flags.timeouts.suspect_after = absl::Seconds(1);
    flags.timeouts.evict_after = absl::Seconds(5);
    flags.lease_target = absl::Milliseconds(50);
  }
  ~InProcessJob() { StopServer(); }

  // The server's optimizer becomes the workers', and its own adds what they push at that rate.
  void MakeLocal(uint32_t steps, double outer_rate) {
    flags.policy.set_local_steps(steps);
    flags.policy.set_outer_learning_rate(outer_rate);
  }

  void StartServer() {
    auto started = ReconServer::Start(flags);
    if (!started.ok()) throw std::runtime_error(std::string(started.status().message()));
    server_ = *std::move(started);
    flags.listen = server_->address();  // The same port after a restart.
    serving_ = std::thread([this] {
      server_status_ = server_->RunUntilStopped();
      if (!server_status_.ok()) std::cerr << "the server ended: " << server_status_ << "\n";
    });
  }
  void StopServer() {
    if (server_ == nullptr) return;
    server_->RequestDrain();
    serving_.join();
    server_ = nullptr;
  }

  WorkerFlags MakeWorker(const std::string& name) const {
    WorkerFlags worker;
    worker.server = flags.listen;
    worker.name = name;
    worker.data = "clusters:1050,150,16,4";
    worker.model.model = "mlp:16-24-4";
    worker.model.device = "cpu";
    worker.codec.rules = *CodecRules::Parse("fp32");
    worker.reconnect_for = absl::Seconds(60);
    return worker;
  }
  // Runs one worker per set of flags to the end of the job; their statuses.
  std::vector<absl::Status> RunWorkers(const std::vector<WorkerFlags>& workers) {
    std::vector<absl::Status> statuses(workers.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < workers.size(); ++i) {
      threads.emplace_back([&, i] { statuses[i] = RunWorker(workers[i], &stop); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

  // Of the worker that only the test plays.
  ControlClient Control() const {
    return ControlClient(*ConnectTo(flags.listen, {}), ControlClient::kDeadline,
                         Caller::Worker(PlayedSecret()));
  }

  TempDir directory;
  ServerFlags flags;
  std::atomic<bool> stop{false};

 private:
  std::unique_ptr<ReconServer> server_;
  std::thread serving_;
  absl::Status server_status_;
};

}  // namespace recon
