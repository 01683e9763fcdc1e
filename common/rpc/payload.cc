#include "common/rpc/payload.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/copied_bytes.h"

namespace recon {
namespace {

constexpr size_t kCopyBytesMax = 256;
// A message of a frame's usual size comes in no more.
constexpr size_t kSlicesUsual = 32;

// Of all slices of a message together: whoever releases the last one releases the chain.
struct SlicesOwner {
  ByteChain chain;
  std::atomic<size_t> slices;
};

void ReleaseSlice(void* of) {
  auto* owner = static_cast<SlicesOwner*>(of);
  if (owner->slices.fetch_sub(1, std::memory_order_acq_rel) == 1) delete owner;
}

}  // namespace

absl::StatusOr<ByteChain> ChainOf(const grpc::ByteBuffer& buffer) {
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  slices->reserve(kSlicesUsual);
  const grpc::Status dumped = buffer.Dump(slices.get());
  if (!dumped.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("message cannot be read: ", dumped.error_message()));
  }
  ByteChain chain;
  chain.Reserve(slices->size());
  for (const grpc::Slice& slice : *slices) chain.Append(slice.begin(), slice.size(), slices);
  return chain;
}

grpc::ByteBuffer BufferOf(const ByteChain& chain) {
  const auto copied = [](const ByteChain::Piece& piece) { return piece.size <= kCopyBytesMax; };
  const auto lent =
      static_cast<size_t>(std::count_if(chain.pieces().begin(), chain.pieces().end(), std::not_fn(copied)));
  SlicesOwner* owner = lent == 0 ? nullptr : new SlicesOwner{chain, {lent}};
  std::vector<grpc::Slice> slices;
  slices.reserve(chain.pieces().size());
  for (const ByteChain::Piece& piece : chain.pieces()) {
    if (copied(piece)) {
      slices.emplace_back(piece.data, piece.size);
      CountCopy(CopyReason::kHeader, piece.size);
      continue;
    }
    slices.emplace_back(const_cast<uint8_t*>(piece.data), piece.size, ReleaseSlice, owner);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace recon
