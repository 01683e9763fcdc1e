// A worker of chaos_test: pushes one after the other, each until it is acknowledged, and says so in a file.
//
//   chaos_worker SERVER WORKERS WORKER LIFE grpc|shm|link FILE [CERT KEY CA]
//
// With "link", all of its connections go through links of its own, which SIGUSR1 cuts for kLinkCut.
//
// FILE gets a line "a" for every push that was acknowledged, and "r" whenever the server had given it up.

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/mutex.h"
#include "common/base/sleep.h"
#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "common/tensor/param_layout.h"
#include "tests/integration/chaos_model.h"
#include "tests/support/link_proxy.h"
#include "worker/comm/frames.h"
#include "worker/comm/param_client.h"
#include "worker/comm/server_connections.h"

namespace recon {
namespace {

constexpr absl::Duration kHeartbeat = absl::Milliseconds(300);
std::atomic<bool> g_cut_asked{false};

// Through a link nobody finds the job's token: the environment has it.
Caller Introduced(const WorkerSecret& secret) {
  Caller caller = *CallerFor({});
  caller.secret = std::string(secret.bytes());
  return caller;
}

class ChaosWorker {
 public:
  ChaosWorker(char** argv, const TlsFlags& tls)
      : links_(std::string(argv[5]) == "link"),
        server_(links_ ? LinkTo(0, argv[1]) : argv[1]),
        workers_(static_cast<uint32_t>(std::atoi(argv[2]))),
        worker_(static_cast<uint32_t>(std::atoi(argv[3]))),
        life_(static_cast<uint32_t>(std::atoi(argv[4]))),
        file_(open(argv[6], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644)),
        layout_(*ParamLayout::Create(ChaosModel(workers_))),
        channel_(*ConnectTo(server_, tls)),
        control_(channel_, absl::Seconds(2), Introduced(secret_)),
        servers_({server_, tls, Introduced(secret_), 2, std::string(argv[5]) == "shm"}, &layout_) {}

  void Run() {
    Join();
    std::thread([this] { Beat(); }).detach();  // Until the process is killed.
    if (links_) std::thread([this] { CutWhenAsked(); }).detach();
    std::mt19937 random(worker_ * kChaosLives + life_);
    for (uint64_t step = 0;; ++step) {
      next_step_ = step;
      while (!Push(step)) {
      }
      Say("a\n");
      Sleep(absl::Milliseconds(5 + random() % 20));
    }
  }

 private:
  void Say(const char* line) {
    if (write(file_, line, strlen(line)) < 0) std::abort();
  }

  WorkerIdentity identity() {
    MutexLock lock(&mu_);
    return identity_;
  }

  // The link to that server, the head being number 0.
  std::string LinkTo(size_t server, const std::string& address) {
    MutexLock lock(&mu_);
    while (link_to_.size() <= server) link_to_.push_back(std::make_unique<LinkProxy>(address));
    link_to_[server]->SetTarget(address);
    return link_to_[server]->address();
  }

  void CutWhenAsked() {
    for (;; Sleep(absl::Milliseconds(20))) {
      if (!g_cut_asked.exchange(false)) continue;
      SetCut(true);
      Sleep(kChaosLinkCut);
      SetCut(false);
    }
  }
  void SetCut(bool cut) {
    MutexLock lock(&mu_);
    for (const auto& link : link_to_) link->SetCut(cut);
  }

  // Until it has worked, and there are parameters.
  void Join() {
    while (true) {
      RegisterRequest request;
      request.set_name(absl::StrCat("w", worker_));
      request.set_incarnation(secret_.incarnation().value());
      *request.mutable_model() = ChaosModel(workers_);
      request.set_train_samples(1000);
      request.set_test_samples(10);
      request.set_next_step(next_step_);
      auto reply = control_.Register(request);
      if (!reply.ok()) {
        Sleep(absl::Milliseconds(20));
        continue;
      }
      {
        MutexLock lock(&mu_);
        identity_.set_worker(reply->worker());
        identity_.set_incarnation(secret_.incarnation().value());
        identity_.set_cluster_epoch(reply->cluster_epoch());
      }
      for (int i = 0; links_ && i < reply->servers_size(); ++i) {
        ServerAddress* other = reply->mutable_servers(i);
        if (!other->address().empty())
          other->set_address(LinkTo(static_cast<size_t>(i) + 1, other->address()));
      }
      if (!servers_.Adopt(*reply).ok()) std::abort();
      if (reply->has_values()) return;
      AcquireRequest acquire;
      *acquire.mutable_identity() = identity();
      const auto acquired = control_.Acquire(acquire);
      if (acquired.ok() && acquired->needs_initial_values()) Call(FrameKind::kInit, 0).IgnoreError();
      Sleep(absl::Milliseconds(20));
    }
  }

  void Beat() {
    while (true) {
      HeartbeatRequest request;
      *request.mutable_identity() = identity();
      request.set_next_step(next_step_);
      control_.Heartbeat(request).IgnoreError();
      Sleep(kHeartbeat);
    }
  }

  bool Push(uint64_t step) {
    const absl::Status status = Call(FrameKind::kPushPull, step);
    if (status.ok()) return true;
    if (absl::IsFailedPrecondition(status)) {
      Say("r\n");
      Join();
    } else {
      Sleep(absl::Milliseconds(20));
    }
    return false;
  }

  absl::Status Call(FrameKind kind, uint64_t step) {
    std::vector<float> values(layout_.params(), 0.0f);
    if (kind != FrameKind::kInit) {
      for (const ShardPlacement& shard : layout_.shards()) {
        values[shard.offset + ChaosIndex(worker_, life_)] = -1;
        values[shard.offset + ChaosIndex(worker_, life_) + 1] = -static_cast<float>(ChaosWeight(step));
      }
    }
    std::vector<EncodedShard> shards = PlainShards(layout_, std::move(values));
    for (EncodedShard& shard : shards) shard.version = 0;
    FrameHeader header;
    header.step = step;
    header.samples = 1;
    for (const auto& reply : servers_.client()->CallAll(
             kind, FramesFor(layout_, header, identity(), shards, servers_.client()->server_of_shard()),
             absl::Seconds(5))) {
      RECON_RETURN_IF_ERROR(reply.status());
    }
    return absl::OkStatus();
  }

  Mutex mu_;
  std::vector<std::unique_ptr<LinkProxy>> link_to_ ABSL_GUARDED_BY(mu_);
  const bool links_;
  const std::string server_;
  const uint32_t workers_, worker_, life_;

  const int file_;
  const ParamLayout layout_;
  const WorkerSecret secret_ = WorkerSecret::Draw();
  const std::shared_ptr<grpc::Channel> channel_;
  ControlClient control_;
  ServerConnections servers_;
  std::atomic<uint64_t> next_step_{0};

  WorkerIdentity identity_ ABSL_GUARDED_BY(mu_);
};

}  // namespace
}  // namespace recon

int main(int argc, char** argv) {
  if (argc != 7 && argc != 10) return 2;
  std::signal(SIGUSR1, [](int) { recon::g_cut_asked = true; });
  const recon::TlsFlags tls =
      argc == 10 ? recon::TlsFlags{argv[7], argv[8], argv[9], false} : recon::TlsFlags();
  recon::ChaosWorker(argv, tls).Run();
}
