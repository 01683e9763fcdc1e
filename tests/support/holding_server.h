#pragma once

#include <unistd.h>

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/base/mutex.h"
#include "common/rpc/grpc_transport.h"
#include "common/rpc/param_service.h"
#include "common/rpc/rpc_server.h"
#include "common/shm/shm_listener.h"
#include "common/shm/shm_transport.h"
#include "common/ucx/ucx_listener.h"
#include "common/ucx/ucx_transport.h"

// Both ends of every transport, for tests.

namespace recon {

inline int servers_made = 0;

// A server whose requests wait until the test answers them.
class HoldingServer {
 public:
  struct Held {
    ByteChain request;  // In place.
    TakenCallback taken;
    Transport::Done done;
    RequestContext memory;
  };

  explicit HoldingServer(const std::string& address = "127.0.0.1:0", const std::string& shm_name = "",
                         const std::string& ucx_address = "127.0.0.1:0")
      : shm_name_(shm_name.empty() ? absl::StrCat("recon-test-", getpid(), "-", ++servers_made) : shm_name),
        service_(Handler()),
        rpc_(*RpcServer::Start("--listen", address, {}, {&service_})),
        shared_memory_(*ShmListener::Start(shm_name_, Handler())) {
    if (!HaveUcx()) return;
    ucx_ = *UcxListener::Start(ucx_address, Handler());
  }
  ~HoldingServer() {
    shared_memory_ = nullptr;
    ucx_ = nullptr;
    service_.Close();
    rpc_->Shutdown(absl::ZeroDuration());
  }

  const std::string& address() const { return rpc_->address(); }
  const std::string& shm_name() const { return shm_name_; }
  std::string ucx_address() const { return HaveUcx() ? absl::StrCat("127.0.0.1:", ucx_->port()) : ""; }
  int shm_connections() const { return shared_memory_->connections(); }
  void CutSharedMemory() { shared_memory_ = nullptr; }

  Held Take() {
    MutexLock lock(&mu_);
    mu_.Await([this] { return !held_.empty(); });
    Held held = std::move(held_.front());
    held_.pop_front();
    return held;
  }
  // Requests that have come in when no more come for a while.
  size_t Settled() {
    MutexLock lock(&mu_);
    size_t seen = 0;
    do {
      seen = held_.size();
    } while (mu_.AwaitFor(absl::Milliseconds(300), [&] { return held_.size() > seen; }));
    return seen;
  }

 private:
  RequestHandler Handler() {
    return
        [this](const ByteChain& request, TakenCallback taken, Transport::Done done, RequestContext memory) {
          MutexLock lock(&mu_);
          held_.push_back({request, std::move(taken), std::move(done), std::move(memory)});
        };
  }

  Mutex mu_;
  std::deque<Held> held_ ABSL_GUARDED_BY(mu_);
  const std::string shm_name_;
  ParamService service_;
  std::unique_ptr<RpcServer> rpc_;
  std::unique_ptr<ShmListener> shared_memory_;
  std::unique_ptr<UcxListener> ucx_;
};

inline std::vector<std::string> Transports() {
  std::vector<std::string> kinds = {"one connection", "two connections", "shared memory"};
  if (HaveUcx()) kinds.push_back("UCX");
  return kinds;
}

inline std::unique_ptr<Transport> Connect(const HoldingServer& server, const std::string& kind) {
  const int connections = kind == "two connections" ? 2 : 1;
  const auto window = std::make_shared<SendWindow>(/*servers=*/1, connections);
  if (kind == "UCX") return *ConnectOverUcx(server.ucx_address());
  auto grpc = *ConnectForFrames(server.address(), {}, connections, window);
  if (kind != "shared memory") return grpc;
  auto shared = std::make_unique<ShmTransport>(server.shm_name(), std::move(grpc));
  REQUIRE(shared->Connected());
  return shared;
}

struct Answer {
  Notification done;
  absl::StatusOr<ByteChain> reply = ByteChain();
  uint64_t call = 0;
};

inline std::shared_ptr<Answer> Send(Transport* transport, const ByteChain& request) {
  auto answer = std::make_shared<Answer>();
  answer->call = transport->Call(request, [answer](absl::StatusOr<ByteChain> reply) {
    answer->reply = std::move(reply);
    answer->done.Notify();
  });
  return answer;
}

inline std::shared_ptr<Answer> Send(Transport* transport, const std::string& request) {
  return Send(transport, ByteChain::FromString(request));
}

inline absl::StatusOr<ByteChain> Await(const std::shared_ptr<Answer>& answer) {
  answer->done.WaitForNotification();
  return answer->reply;
}

inline constexpr size_t kMiB = size_t{1} << 20;

}  // namespace recon
