#include "common/rpc/payload.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/copied_bytes.h"

namespace recon {
namespace {

constexpr size_t kCopyBytesMax = 256;

void ReleaseOwner(void* owner) { delete static_cast<std::shared_ptr<const void>*>(owner); }

}  // namespace

absl::StatusOr<ByteChain> ChainOf(const grpc::ByteBuffer& buffer) {
  auto slices = std::make_shared<std::vector<grpc::Slice>>();
  const grpc::Status dumped = buffer.Dump(slices.get());
  if (!dumped.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("message cannot be read: ", dumped.error_message()));
  }
  ByteChain chain;
  for (const grpc::Slice& slice : *slices) chain.Append(slice.begin(), slice.size(), slices);
  return chain;
}

grpc::ByteBuffer BufferOf(const ByteChain& chain) {
  std::vector<grpc::Slice> slices;
  slices.reserve(chain.pieces().size());
  for (const ByteChain::Piece& piece : chain.pieces()) {
    if (piece.size <= kCopyBytesMax) {
      slices.emplace_back(piece.data, piece.size);
      CountCopy(CopyReason::kHeader, piece.size);
      continue;
    }
    auto* owner = new std::shared_ptr<const void>(piece.owner);
    slices.emplace_back(const_cast<uint8_t*>(piece.data), piece.size, ReleaseOwner, owner);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

}  // namespace recon
