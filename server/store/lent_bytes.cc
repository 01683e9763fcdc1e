#include "server/store/lent_bytes.h"

#include "common/base/check.h"

namespace recon {

void LentBytes::Lend(const ByteChain& bytes) {
  RECON_CHECK(!bytes.pieces().empty());
  owner_ = bytes.pieces().front().owner;
  pieces_.clear();
  for (const ByteChain::Piece& piece : bytes.pieces()) pieces_.emplace_back(piece.data, piece.size);
}

ByteChain LentBytes::Get() const {
  ByteChain bytes;
  if (const std::shared_ptr<const void> owner = owner_.lock()) {
    for (const absl::Span<const uint8_t> piece : pieces_) bytes.Append(piece.data(), piece.size(), owner);
  }
  return bytes;
}

}  // namespace recon
