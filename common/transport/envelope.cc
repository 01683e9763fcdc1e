#include "common/transport/envelope.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/retry_hint.h"

namespace recon {
namespace {

constexpr size_t kErrorTextBytesMax = 4096;
// Headers and tables do not count: a shard of a round size would be one more otherwise.
constexpr size_t kHeadersMax = size_t{64} << 10;

ByteChain Wrap(const Envelope& envelope, const ByteChain& body) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&envelope);
  ByteChain message = ByteChain::FromVector({bytes, bytes + kEnvelopeBytes});
  message.Append(body);
  return message;
}

}  // namespace

size_t RequestCharge(size_t bytes, size_t frame_bytes) {
  return std::max(bytes / kHeadersMax * kHeadersMax, frame_bytes);
}

ByteChain WrapRequest(uint64_t call, const ByteChain& frame) { return Wrap({call, 0, 0}, frame); }

ByteChain WrapReply(uint64_t call, const absl::StatusOr<ByteChain>& reply) {
  if (reply.ok() && reply->size() > limits::kFrameBytesMax) {
    return WrapReply(call, absl::InternalError("the reply is larger than a frame may be"));
  }
  if (reply.ok()) return Wrap({call, 0, 0}, *reply);
  Envelope envelope;
  envelope.call = call;
  envelope.code = static_cast<uint32_t>(reply.status().code());
  if (const std::optional<absl::Duration> wait = RetryAfter(reply.status())) {
    envelope.retry_ms =
        static_cast<uint32_t>(std::clamp<int64_t>(absl::ToInt64Milliseconds(*wait), 0, UINT32_MAX));
  }
  return Wrap(envelope,
              ByteChain::FromString(std::string(reply.status().message().substr(0, kErrorTextBytesMax))));
}

ByteChain WrapTaken(uint64_t call) { return Wrap({call, kTaken, 0}, ByteChain()); }

ByteChain WrapSecret(absl::string_view secret) {
  return Wrap({0, kSecret, 0}, ByteChain::FromString(std::string(secret)));
}

absl::StatusOr<std::pair<Envelope, ByteChain>> Unwrap(const ByteChain& message) {
  if (message.size() < kEnvelopeBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("message: length is ", message.size(), ", expected at least ", kEnvelopeBytes));
  }
  Envelope envelope;
  uint8_t scratch[kEnvelopeBytes];
  ByteReader reader(message);
  std::memcpy(&envelope.call, reader.Read(sizeof(envelope.call), scratch), sizeof(envelope.call));
  std::memcpy(&envelope.code, reader.Read(sizeof(envelope.code), scratch), sizeof(envelope.code));
  std::memcpy(&envelope.retry_ms, reader.Read(sizeof(envelope.retry_ms), scratch), sizeof(envelope.retry_ms));
  return std::make_pair(envelope, message.Range(kEnvelopeBytes, message.size() - kEnvelopeBytes));
}

absl::StatusOr<ByteChain> ReplyOf(const Envelope& envelope, const ByteChain& body) {
  if (envelope.code == 0) return body;
  const auto code = envelope.code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)
                        ? static_cast<absl::StatusCode>(envelope.code)
                        : absl::StatusCode::kInternal;
  absl::Status status(code, body.Range(0, std::min(body.size(), kErrorTextBytesMax)).ToString());
  if (envelope.retry_ms > 0) status = WithRetryAfter(status, absl::Milliseconds(envelope.retry_ms));
  return status;
}

}  // namespace recon
