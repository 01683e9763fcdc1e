#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace recon {

// The two libraries' codes are the same numbers.
absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace recon
