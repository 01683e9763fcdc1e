#include "server/process/frame_listeners.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/host_port.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

absl::Status CheckUcx(const std::string& listen, const TlsFlags& tls) {
  RECON_RETURN_IF_ERROR(CheckAddress("--ucx-listen", listen));
  if (!tls.cert.empty()) {
    return absl::InvalidArgumentError(
        "--ucx-listen: UCX neither encrypts nor checks who connects: not with TLS");
  }
  // Whatever address is given, UCX listens on all networks that it uses.
  if (!tls.insecure) {
    return absl::InvalidArgumentError(
        "--ucx-listen: UCX is plain text and lets everybody in: give --insecure");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FrameListeners::Start(const Options& options, const TlsFlags& tls, uint64_t id,
                                   const RequestHandler& handler, ConnectedProcesses* connected) {
  if (options.shared_memory && tls.cert.empty()) {
    const std::string name = absl::StrCat("recon-", absl::Hex(id, absl::kZeroPad16));
    absl::StatusOr<std::unique_ptr<ShmListener>> listener = ShmListener::Start(name, handler, connected);
    if (listener.ok()) {
      shm_ = *std::move(listener);
      shared_memory_ = name;
    } else {
      LogWarn("workers on this machine use the network: {}", listener.status().message());
    }
  }
  if (options.ucx_listen.empty()) return absl::OkStatus();
  RECON_RETURN_IF_ERROR(CheckUcx(options.ucx_listen, tls));
  RECON_ASSIGN_OR_RETURN(ucx_, UcxListener::Start(options.ucx_listen, handler, connected));
  // Workers of other machines do not reach "any": they take the host under which they know the server.
  const std::string host = options.ucx_listen.substr(0, options.ucx_listen.rfind(':'));
  ucx_address_ = absl::StrCat(ucx_->any_host() ? "" : host, ":", ucx_->port());
  LogInfo("UCX listens on port {}", ucx_->port());
  return absl::OkStatus();
}

void FrameListeners::Stop() {
  shm_ = nullptr;
  ucx_ = nullptr;
}

}  // namespace recon
