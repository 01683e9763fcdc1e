#include "common/rpc/grpc_tuning.h"

#include <cstdlib>

#include "grpcpp/version_info.h"

namespace recon {
namespace {

// By default in none of them; measured and read in this one. Frames longer than 64 blocks of 64 KiB would not
// end with the first two alone.
constexpr bool kKnownVersion = GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51;
constexpr char kExperiments[] = "tcp_frame_size_tuning,tcp_rcv_lowat,-tcp_read_chunks";

}  // namespace

void TuneGrpc() {
  if (kKnownVersion) (void)setenv("GRPC_EXPERIMENTS", kExperiments, /*replace=*/0);
}

}  // namespace recon
