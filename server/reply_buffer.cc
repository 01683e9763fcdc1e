#include "server/reply_buffer.h"

#include "common/codec/codec.h"

namespace recon {

ByteChain ReplyBuffer::ForPart(const Frame& request, size_t index, const ByteChain& gradient) {
  const PartHeader& part = request.parts[index];
  const uint64_t bytes = EncodedBytes(static_cast<CodecId>(request.header.reply_codec), part.count);
  const bool value_for_value = IsValueCodec(static_cast<CodecId>(part.codec)) && gradient.size() == bytes;
  if (memory_.over_request && value_for_value) return gradient;
  std::call_once(allocated_, [&] { Allocate(request); });
  ByteChain chain;
  if (all_ != nullptr) {
    chain.Append(all_.get() + offsets_[index], bytes, all_);
  } else {
    const std::shared_ptr<uint8_t[]> own(new uint8_t[bytes]);
    chain.Append(own.get(), bytes, own);
  }
  return chain;
}

void ReplyBuffer::Allocate(const Frame& request) {
  size_t bytes = 0;
  offsets_.reserve(request.parts.size());
  for (const PartHeader& part : request.parts) {
    if (IsSparse(static_cast<CodecId>(part.codec))) return;  // It is answered with what has changed.
    offsets_.push_back(bytes);
    bytes += EncodedBytes(static_cast<CodecId>(request.header.reply_codec), part.count);
  }
  if (memory_.allocate != nullptr) all_ = memory_.allocate(bytes);
  if (all_ == nullptr) all_ = std::shared_ptr<uint8_t[]>(new uint8_t[bytes]);
}

}  // namespace recon
