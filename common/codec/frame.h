#pragma once

#include "absl/status/statusor.h"
#include "common/base/byte_chain.h"
#include "common/base/pool_allocator.h"
#include "common/codec/wire_format.h"

namespace recon {

// A decoded frame; part i's payload is payloads[i].
struct Frame {
  FrameHeader header;
  PooledVector<PartHeader> parts;
  PooledVector<ByteChain> payloads;
};

// The bytes of `frame`: fills in magic, version, counts, lengths and checksum. Payloads are not copied.
ByteChain EncodeFrame(Frame frame);

// Reads a frame; payloads refer to `bytes` and are not copied. Checks magic, version, checksum, kinds,
// codecs, that lengths agree with each other and with the bytes there are, before it allocates.
// InvalidArgument with the field and both numbers otherwise. Which shards exist is the caller's to check.
absl::StatusOr<Frame> DecodeFrame(const ByteChain& bytes);

}  // namespace recon
