// In place of everything else here, in programs that are built without UCX.

#include "absl/status/status.h"
#include "common/ucx/ucx_listener.h"
#include "common/ucx/ucx_transport.h"

namespace recon {
namespace {

absl::Status Without() {
  return absl::FailedPreconditionError("this program has been built without UCX (libucx-dev, RECON_UCX)");
}

}  // namespace

bool HaveUcx() { return false; }

absl::StatusOr<std::unique_ptr<Transport>> ConnectOverUcx(const std::string&, const std::string&) {
  return Without();
}

absl::StatusOr<std::unique_ptr<UcxListener>> UcxListener::Start(const std::string&, RequestHandler,
                                                                ConnectedProcesses*) {
  return Without();
}

}  // namespace recon
