#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/pool_allocator.h"

namespace recon {

// A sequence of bytes in pieces that others own, so that a message can be built from pages and read
// from network buffers without copying.
//
// Threads: a value type; the bytes are not written while a chain refers to them, but by a ByteWriter.
// Ownership: the chain keeps each piece's owner alive.
class ByteChain {
 public:
  struct Piece {
    const uint8_t* data = nullptr;
    size_t size = 0;
    std::shared_ptr<const void> owner;
  };

  ByteChain() = default;
  ByteChain(const ByteChain&) = default;
  ByteChain& operator=(const ByteChain&) = default;
  // What was moved from is empty.
  ByteChain(ByteChain&& other) noexcept
      : pieces_(std::exchange(other.pieces_, {})), size_(std::exchange(other.size_, 0)) {}
  ByteChain& operator=(ByteChain&& other) noexcept {
    pieces_ = std::exchange(other.pieces_, {});
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  ~ByteChain() = default;

  // Takes the bytes over.
  static ByteChain FromString(std::string bytes);
  static ByteChain FromVector(PooledVector<uint8_t> bytes);

  // What lies side by side and has one owner becomes one piece.
  void Append(const void* data, size_t size, std::shared_ptr<const void> owner);
  void Append(const ByteChain& other);

  size_t size() const { return size_; }
  absl::Span<const Piece> pieces() const { return pieces_; }

  // Bytes [offset, offset + size); the range must lie within the chain.
  ByteChain Range(size_t offset, size_t size) const;
  // Copies the first `size` bytes, of as many as there are at least.
  void CopyTo(void* to, size_t size) const;
  std::string ToString() const;

 private:
  // A page in 16 bits comes in three of the network's buffers, or in two.
  absl::InlinedVector<Piece, 3, PoolAllocator<Piece>> pieces_;
  size_t size_ = 0;
};

// Reads a chain from front to back. `chain` must outlive the reader.
class ByteReader {
 public:
  explicit ByteReader(const ByteChain& chain) : chain_(chain), remaining_(chain.size()) {}

  size_t remaining() const { return remaining_; }

  // The next `size` bytes, of any alignment: in place if they lie in one piece, else copied to
  // `scratch` (at least `size` bytes) and, if they are more than one value, counted (CountCopy()). `size`
  // must not exceed remaining().
  const uint8_t* Read(size_t size, uint8_t* scratch);

  // The next items of `width` bytes (at most 8) that lie side by side, at most `max` of them (at least 1;
  // all of them must lie within remaining()): how many is left in `items`, at least 1. In place, but for an
  // item that lies in two pieces: it comes alone, put together in `scratch`.
  const uint8_t* ReadRun(size_t width, size_t max, uint8_t* scratch, size_t* items);

 private:
  const ByteChain& chain_;
  size_t piece_ = 0;
  size_t offset_ = 0;
  size_t remaining_;
};

// Writes a chain's bytes from front to back. The caller knows that they may be written, and that nobody else
// looks at them meanwhile. `chain` must outlive the writer.
class ByteWriter {
 public:
  explicit ByteWriter(const ByteChain& chain) : chain_(chain) {}

  // Has `write` put the next `items` of `width` bytes (at most 8 each; all must lie within the chain), some
  // at a time: items [first, first + count) to `to`, of any alignment. That is where they belong, but for an
  // item that lies in two pieces.
  void Write(size_t width, size_t items,
             absl::FunctionRef<void(uint8_t* to, size_t first, size_t count)> write);

 private:
  const ByteChain& chain_;
  size_t piece_ = 0;
  size_t offset_ = 0;
};

}  // namespace recon
