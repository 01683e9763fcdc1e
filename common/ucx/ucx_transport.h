#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/transport/transport.h"

namespace recon {

// Whether this program has been built with UCX.
bool HaveUcx();

// Frames to a UcxListener (HOST:PORT), which is shown `secret`: WorkerSecret's bytes, or nothing.
// InvalidArgument for an address that is none, Unavailable if its name is not known, FailedPrecondition
// without UCX.
absl::StatusOr<std::unique_ptr<Transport>> ConnectOverUcx(const std::string& address,
                                                          const std::string& secret = "");

}  // namespace recon
