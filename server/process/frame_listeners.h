#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/credentials.h"
#include "common/shm/shm_listener.h"
#include "common/transport/transport.h"
#include "common/ucx/ucx_listener.h"

namespace recon {

// The ways for frames to a server beside gRPC's, as its flags say, and what workers are told of them.
class FrameListeners {
 public:
  struct Options {
    bool shared_memory = true;  // Where there is no TLS.
    std::string ucx_listen;     // HOST:PORT; empty: no UCX.
  };

  // `id`: under which workers find its shared memory. `connected` is told of connections. InvalidArgument,
  // naming the flag, for one that does not go with the others; errors of UCX. Without shared memory they use
  // the network, and the log says so.
  absl::Status Start(const Options& options, const TlsFlags& tls, uint64_t id, const RequestHandler& handler,
                     ConnectedProcesses* connected);
  // Nothing calls the handler afterwards.
  void Stop();

  // As RegisterReply has them; empty if there is none.
  const std::string& shared_memory() const { return shared_memory_; }
  const std::string& ucx_address() const { return ucx_address_; }

 private:
  std::string shared_memory_, ucx_address_;
  std::unique_ptr<ShmListener> shm_;
  std::unique_ptr<UcxListener> ucx_;
};

}  // namespace recon
