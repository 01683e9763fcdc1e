#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "common/base/hash.h"
#include "common/codec/codec.h"
#include "common/codec/frame.h"
#include "common/codec/page_hash.h"
#include "common/transport/envelope.h"

// Any bytes, and the same bytes under a right checksum (else the fuzzer never passes it). What decodes must
// encode to the bytes it came from.
namespace {

void Check(const std::string& bytes) {
  const absl::StatusOr<recon::Frame> frame = recon::DecodeFrame(recon::ByteChain::FromString(bytes));
  if (!frame.ok()) return;
  const bool hashes = frame->header.kind == static_cast<uint8_t>(recon::FrameKind::kPull);
  for (size_t i = 0; i < frame->parts.size(); ++i) {
    const recon::PartHeader& part = frame->parts[i];
    const std::string payload = frame->payloads[i].ToString();
    const auto codec = static_cast<recon::CodecId>(part.codec);
    if (hashes && !payload.empty() && payload.size() != recon::PageHashesBytes(part.count)) std::abort();
    if (hashes || payload.empty() || !recon::IsValueCodec(codec)) continue;  // Others have their own fuzzers.
    std::string values(size_t{part.count} * sizeof(float), '\0');
    recon::Decode(static_cast<recon::CodecId>(part.codec), reinterpret_cast<const uint8_t*>(payload.data()),
                  part.count, reinterpret_cast<float*>(values.data()), part.exponent);
  }
  if (recon::EncodeFrame(*frame).ToString() != bytes) std::abort();
}

// The same bytes as a transport's message.
void CheckEnvelope(const std::string& bytes) {
  const auto unwrapped = recon::Unwrap(recon::ByteChain::FromString(bytes));
  if (!unwrapped.ok()) return;
  const auto& [envelope, body] = *unwrapped;
  const absl::StatusOr<recon::ByteChain> reply = recon::ReplyOf(envelope, body);
  if (reply.ok() != (envelope.code == 0)) std::abort();
  if (reply.ok() && recon::WrapRequest(envelope.call, body).size() != bytes.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  Check(bytes);
  CheckEnvelope(bytes);
  if (size < recon::kFrameHeaderBytes) return 0;
  recon::FrameHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  header.checksum = 0;
  std::memcpy(bytes.data(), &header, sizeof(header));
  const size_t head =
      std::min(size, recon::kFrameHeaderBytes + uint64_t{header.part_count} * recon::kPartHeaderBytes);
  header.checksum = recon::Hash64(bytes.data(), head);
  std::memcpy(bytes.data(), &header, sizeof(header));
  Check(bytes);
  return 0;
}
