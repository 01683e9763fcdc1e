#pragma once

#include "absl/status/statusor.h"
#include "common/base/byte_chain.h"
#include "grpcpp/support/byte_buffer.h"

namespace recon {

// Between gRPC's buffers and ByteChain, without copying payloads. Thread-safe free functions.

// Takes the buffer over and refers to its slices. InvalidArgument if it cannot be read.
absl::StatusOr<ByteChain> ChainOf(grpc::ByteBuffer* buffer);

// Slices that refer to the chain's pieces and keep the owners of all alive until gRPC has sent the last one.
// Small pieces are copied: a slice of its own costs more than a copy of it.
grpc::ByteBuffer BufferOf(const ByteChain& chain);

}  // namespace recon
