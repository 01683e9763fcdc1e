#include "common/base/byte_chain.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/copied_bytes.h"

namespace recon {
namespace {

constexpr size_t kValueBytesMax = 8;

// From a piece's end to the beginning of the next one, if there is one.
void StepOver(absl::Span<const ByteChain::Piece> pieces, size_t* piece, size_t* offset) {
  while (*piece < pieces.size() && *offset == pieces[*piece].size) {
    ++*piece;
    *offset = 0;
  }
}

// Of bytes in one place.
template <typename Bytes>
ByteChain ChainOf(Bytes bytes) {
  auto owner = MakePooled<const Bytes>(std::move(bytes));
  ByteChain chain;
  chain.Append(owner->data(), owner->size(), owner);
  return chain;
}

}  // namespace

ByteChain ByteChain::FromString(std::string bytes) { return ChainOf(std::move(bytes)); }

ByteChain ByteChain::FromVector(PooledVector<uint8_t> bytes) { return ChainOf(std::move(bytes)); }

void ByteChain::Append(const void* data, size_t size, std::shared_ptr<const void> owner) {
  if (size == 0) return;
  size_ += size;
  if (!pieces_.empty()) {
    Piece& last = pieces_.back();
    const bool same_owner = !last.owner.owner_before(owner) && !owner.owner_before(last.owner);
    if (last.data + last.size == data && same_owner) {
      last.size += size;
      return;
    }
  }
  pieces_.push_back({static_cast<const uint8_t*>(data), size, std::move(owner)});
}

void ByteChain::Append(const ByteChain& other) {
  for (const Piece& piece : other.pieces_) Append(piece.data, piece.size, piece.owner);
}

ByteChain ByteChain::Range(size_t offset, size_t size) const {
  RECON_CHECK_LE(offset, size_);
  RECON_CHECK_LE(size, size_ - offset);
  auto first = pieces_.begin();
  while (first != pieces_.end() && offset >= first->size) offset -= first++->size;
  auto last = first;
  for (size_t there = 0; last != pieces_.end() && there < offset + size; ++last) there += last->size;
  ByteChain range;
  range.pieces_.reserve(static_cast<size_t>(last - first));
  for (auto piece = first; piece != last; ++piece) {
    const size_t take = std::min(size, piece->size - offset);
    range.Append(piece->data + offset, take, piece->owner);
    offset = 0;
    size -= take;
  }
  return range;
}

void ByteChain::CopyTo(void* to, size_t size) const {
  RECON_CHECK_LE(size, size_);
  auto* next = static_cast<uint8_t*>(to);
  for (const Piece& piece : pieces_) {
    const size_t take = std::min(size, piece.size);
    std::memcpy(next, piece.data, take);
    next += take;
    size -= take;
  }
}

std::string ByteChain::ToString() const {
  std::string bytes(size_, '\0');
  CopyTo(bytes.data(), size_);
  return bytes;
}

const uint8_t* ByteReader::Read(size_t size, uint8_t* scratch) {
  const auto& pieces = chain_.pieces();
  RECON_CHECK_LE(size, remaining_);
  remaining_ -= size;
  StepOver(pieces, &piece_, &offset_);
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
  StepOver(pieces, &piece_, &offset_);
  RECON_CHECK_LE(width, kValueBytesMax);
  RECON_CHECK_LT(piece_, pieces.size(), "a reader is at the end of its chain");
  *items = std::max<size_t>(1, std::min(max, (pieces[piece_].size - offset_) / width));
  return Read(*items * width, scratch);
}

void ByteWriter::Write(size_t width, size_t items,
                       absl::FunctionRef<void(uint8_t* to, size_t first, size_t count)> write) {
  const auto& pieces = chain_.pieces();
  for (size_t first = 0, count = 0; first < items; first += count) {
    StepOver(pieces, &piece_, &offset_);
    RECON_CHECK_LT(piece_, pieces.size(), "a writer is at the end of its chain");
    count = std::min(items - first, (pieces[piece_].size - offset_) / width);
    if (count > 0) {
      write(const_cast<uint8_t*>(pieces[piece_].data) + offset_, first, count);
      offset_ += count * width;
      continue;
    }
    count = 1;
    uint8_t item[kValueBytesMax];
    write(item, first, count);
    for (size_t i = 0; i < width; ++i, ++offset_) {
      StepOver(pieces, &piece_, &offset_);
      const_cast<uint8_t*>(pieces[piece_].data)[offset_] = item[i];
    }
  }
}

}  // namespace recon
