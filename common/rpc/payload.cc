#include "common/rpc/payload.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/copied_bytes.h"
#include "common/base/pool_allocator.h"
#include "grpcpp/support/proto_buffer_reader.h"

namespace recon {
namespace {

constexpr size_t kCopyBytesMax = 256;

// Of all slices of a message together: whoever releases the last one releases the chain.
struct SlicesOwner {
  ByteChain chain;
  std::atomic<size_t> slices;
};

void ReleaseSlice(void* of) {
  auto* owner = static_cast<SlicesOwner*>(of);
  if (owner->slices.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  owner->~SlicesOwner();
  PoolAllocator<SlicesOwner>().deallocate(owner, 1);
}

}  // namespace

absl::StatusOr<ByteChain> ChainOf(grpc::ByteBuffer* buffer) {
  const auto owner = MakePooled<grpc::ByteBuffer>();
  owner->Swap(buffer);
  grpc::ProtoBufferReader reader(owner.get());
  if (!reader.status().ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("message cannot be read: ", reader.status().error_message()));
  }
  ByteChain chain;
  const void* data = nullptr;
  int size = 0;
  while (reader.Next(&data, &size)) chain.Append(data, static_cast<size_t>(size), owner);
  return chain;
}

grpc::ByteBuffer BufferOf(const ByteChain& chain) {
  const auto copied = [](const ByteChain::Piece& piece) { return piece.size <= kCopyBytesMax; };
  const auto lent =
      static_cast<size_t>(std::count_if(chain.pieces().begin(), chain.pieces().end(), std::not_fn(copied)));
  SlicesOwner* owner =
      lent == 0 ? nullptr : new (PoolAllocator<SlicesOwner>().allocate(1)) SlicesOwner{chain, {lent}};
  PooledVector<grpc::Slice> slices;
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
