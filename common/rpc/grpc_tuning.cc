#include "common/rpc/grpc_tuning.h"

#include <cstdlib>

#include "grpcpp/version_info.h"

namespace recon {
namespace {

// The version whose source was read, and that was measured.
constexpr bool kKnownVersion = GRPC_CPP_VERSION_MAJOR == 1 && GRPC_CPP_VERSION_MINOR == 51;
// The third goes with the others: with them, what is left of an HTTP/2 frame of more than 64 blocks may not
// be read until something else comes.
constexpr char kExperiments[] = "tcp_frame_size_tuning,tcp_rcv_lowat,-tcp_read_chunks";

}  // namespace

void TuneGrpc() {
  if (kKnownVersion) (void)setenv("GRPC_EXPERIMENTS", kExperiments, /*replace=*/0);
}

}  // namespace recon
