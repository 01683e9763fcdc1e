#include "server/frame_listeners.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/client_channel.h"

namespace recon {
namespace {

absl::Status CheckUcx(const std::string& listen, const TlsFlags& tls) {
  RECON_RETURN_IF_ERROR(CheckAddress("--ucx-listen", listen));
  if (!tls.cert.empty()) {
    return absl::InvalidArgumentError(
        "--ucx-listen: UCX neither encrypts nor checks who connects: not with TLS");
  }
  if (!IsLoopback(listen) && !tls.insecure) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ucx-listen ", listen, " is not loopback: UCX is plain text, give --insecure"));
  }
  return absl::OkStatus();
}

// Workers of other machines do not reach "any": they take the host under which they know the server.
std::string AddressToDial(const std::string& listen, int port) {
  const std::string host = listen.substr(0, listen.rfind(':'));
  const bool any = host == "0.0.0.0" || host == "[::]";
  return absl::StrCat(any ? "" : host, ":", port);
}

}  // namespace

absl::Status FrameListeners::Start(const ServerFlags& flags, const TlsFlags& tls, uint64_t id,
                                   const RequestHandler& handler) {
  if (flags.shared_memory && tls.cert.empty()) {
    const std::string name = absl::StrCat("recon-", absl::Hex(id, absl::kZeroPad16));
    absl::StatusOr<std::unique_ptr<ShmListener>> listener = ShmListener::Start(name, handler);
    if (listener.ok()) {
      shm_ = *std::move(listener);
      shared_memory_ = name;
    } else {
      spdlog::warn("workers on this machine use the network: {}", listener.status().message());
    }
  }
  if (flags.ucx_listen.empty()) return absl::OkStatus();
  RECON_RETURN_IF_ERROR(CheckUcx(flags.ucx_listen, tls));
  RECON_ASSIGN_OR_RETURN(ucx_, UcxListener::Start(flags.ucx_listen, handler));
  ucx_address_ = AddressToDial(flags.ucx_listen, ucx_->port());
  spdlog::info("UCX listens on port {}", ucx_->port());
  return absl::OkStatus();
}

void FrameListeners::Stop() {
  shm_ = nullptr;
  ucx_ = nullptr;
}

}  // namespace recon
