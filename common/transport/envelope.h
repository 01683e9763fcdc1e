#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/byte_chain.h"
#include "common/base/limits.h"

namespace recon {

// Precedes every message of a transport, both ways, little endian: which call of its connection a message
// belongs to. A request's body is a frame. A reply's is a frame if `code` is 0, else an error's text.
struct Envelope {
  uint64_t call = 0;      // Chosen by the caller; the reply has the same.
  uint32_t code = 0;      // Replies: an absl::StatusCode, or kTaken. Requests: 0.
  uint32_t retry_ms = 0;  // Replies with an error: when to try again; 0 = not said.
};
inline constexpr size_t kEnvelopeBytes = 8 + 4 + 4;
static_assert(sizeof(Envelope) == kEnvelopeBytes);

// Instead of a reply that will come later: the request is held no longer, others may be sent. No body.
inline constexpr uint32_t kTaken = uint32_t{1} << 16;
// The code of WrapSecret()'s message. No reply comes.
inline constexpr uint32_t kSecret = uint32_t{1} << 17;

// What a request counts of limits::kRequestBytesInFlight until it is taken or answered: a small one may have
// a large reply, and its sender has cut it for that, to about `frame_bytes`.
size_t RequestCharge(size_t bytes, size_t frame_bytes = limits::kFrameTargetBytes);

// The message of a request; `frame` is not copied.
ByteChain WrapRequest(uint64_t call, const ByteChain& frame);
// The message of a reply, or of the error that it is instead.
ByteChain WrapReply(uint64_t call, const absl::StatusOr<ByteChain>& reply);

ByteChain WrapTaken(uint64_t call);
// What a worker's process shows first over a transport that has no greeting of its own: WorkerSecret's bytes.
ByteChain WrapSecret(absl::string_view secret);

// Envelope and body of a message. InvalidArgument if it is too short to have one.
absl::StatusOr<std::pair<Envelope, ByteChain>> Unwrap(const ByteChain& message);
// What WrapReply() was given. Unknown codes become Internal.
absl::StatusOr<ByteChain> ReplyOf(const Envelope& envelope, const ByteChain& body);

}  // namespace recon
