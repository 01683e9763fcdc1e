#include "server/data_plane/reply_buffer.h"

#include "common/codec/codec.h"

namespace recon {
namespace {

uint64_t ReplyBytes(const Frame& request, size_t index) {
  return EncodedBytes(static_cast<CodecId>(request.header.reply_codec), request.parts[index].count);
}

}  // namespace

ByteChain ReplyBuffer::ForPart(const Frame& request, size_t index, const ByteChain& gradient) {
  if (OverRequest(request, index)) return gradient;
  const uint64_t bytes = ReplyBytes(request, index);
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

bool ReplyBuffer::OverRequest(const Frame& request, size_t index) const {
  const PartHeader& part = request.parts[index];
  return context_.over_request && IsValueCodec(static_cast<CodecId>(part.codec)) &&
         part.payload_bytes == ReplyBytes(request, index);
}

void ReplyBuffer::Allocate(const Frame& request) {
  size_t bytes = 0;
  offsets_.reserve(request.parts.size());
  for (size_t i = 0; i < request.parts.size(); ++i) {
    // It is answered with what has changed.
    if (IsSparse(static_cast<CodecId>(request.parts[i].codec))) return;
    offsets_.push_back(bytes);
    if (!OverRequest(request, i)) bytes += ReplyBytes(request, i);
  }
  if (context_.allocate != nullptr) all_ = context_.allocate(bytes);
  if (all_ == nullptr) all_ = std::shared_ptr<uint8_t[]>(new uint8_t[bytes]);
}

}  // namespace recon
