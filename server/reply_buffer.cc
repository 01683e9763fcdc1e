#include "server/reply_buffer.h"

#include "common/codec/codec.h"

namespace recon {

std::shared_ptr<uint8_t[]> ReplyBuffer::ForPart(const Frame& request, size_t index) {
  std::call_once(allocated_, [&] { Allocate(request); });
  if (all_ != nullptr) return {all_, all_.get() + offsets_[index]};
  const auto codec = static_cast<CodecId>(request.header.reply_codec);
  return std::shared_ptr<uint8_t[]>(new uint8_t[EncodedBytes(codec, request.parts[index].count)]);
}

void ReplyBuffer::Allocate(const Frame& request) {
  size_t bytes = 0;
  offsets_.reserve(request.parts.size());
  for (const PartHeader& part : request.parts) {
    if (IsSparse(static_cast<CodecId>(part.codec))) return;  // It is answered with what has changed.
    offsets_.push_back(bytes);
    bytes += EncodedBytes(static_cast<CodecId>(request.header.reply_codec), part.count);
  }
  if (memory_ != nullptr) all_ = memory_(bytes);
  if (all_ == nullptr) all_ = std::shared_ptr<uint8_t[]>(new uint8_t[bytes]);
}

}  // namespace recon
