#include "common/base/byte_chain.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/copied_bytes.h"

namespace recon {
namespace {

constexpr size_t kValueBytesMax = 8;

}  // namespace

ByteChain ByteChain::FromString(std::string bytes) {
  auto owner = std::make_shared<const std::string>(std::move(bytes));
  ByteChain chain;
  chain.Append(owner->data(), owner->size(), owner);
  return chain;
}

void ByteChain::Append(const void* data, size_t size, std::shared_ptr<const void> owner) {
  if (size == 0) return;
  pieces_.push_back({static_cast<const uint8_t*>(data), size, std::move(owner)});
  size_ += size;
}

void ByteChain::Append(const ByteChain& other) {
  pieces_.insert(pieces_.end(), other.pieces_.begin(), other.pieces_.end());
  size_ += other.size_;
}

ByteChain ByteChain::Range(size_t offset, size_t size) const {
  ByteChain range;
  for (const Piece& piece : pieces_) {
    if (size == 0) break;
    if (offset >= piece.size) {
      offset -= piece.size;
      continue;
    }
    const size_t take = std::min(size, piece.size - offset);
    range.Append(piece.data + offset, take, piece.owner);
    offset = 0;
    size -= take;
  }
  return range;
}

std::string ByteChain::ToString() const {
  std::string bytes;
  bytes.reserve(size_);
  for (const Piece& piece : pieces_) bytes.append(reinterpret_cast<const char*>(piece.data), piece.size);
  return bytes;
}

const uint8_t* ByteReader::Read(size_t size, uint8_t* scratch) {
  const auto& pieces = chain_.pieces();
  remaining_ -= size;
  while (piece_ < pieces.size() && offset_ == pieces[piece_].size) {
    ++piece_;
    offset_ = 0;
  }
  if (size == 0) return scratch;
  const ByteChain::Piece& first = pieces[piece_];
  if (first.size - offset_ >= size) {
    const uint8_t* data = first.data + offset_;
    offset_ += size;
    return data;
  }
  if (size > kValueBytesMax) CountCopy(CopyReason::kStraddling, size);
  for (size_t copied = 0; copied < size;) {
    const ByteChain::Piece& piece = pieces[piece_];
    const size_t take = std::min(size - copied, piece.size - offset_);
    std::memcpy(scratch + copied, piece.data + offset_, take);
    copied += take;
    offset_ += take;
    if (offset_ == piece.size) {
      ++piece_;
      offset_ = 0;
    }
  }
  return scratch;
}

const uint8_t* ByteReader::ReadRun(size_t width, size_t max, uint8_t* scratch, size_t* items) {
  const auto& pieces = chain_.pieces();
  while (offset_ == pieces[piece_].size) {
    ++piece_;
    offset_ = 0;
  }
  *items = std::max<size_t>(1, std::min(max, (pieces[piece_].size - offset_) / width));
  return Read(*items * width, scratch);
}

}  // namespace recon
