#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace recon {

// XXH3 (https://xxhash.com), one library for checksums and identity. Thread-safe.

// Checksum over stored bytes.
uint64_t Hash64(const void* data, size_t size);

// The same over bytes that come in pieces.
class StreamingHash64 {
 public:
  StreamingHash64();
  ~StreamingHash64();
  StreamingHash64(const StreamingHash64&) = delete;
  StreamingHash64& operator=(const StreamingHash64&) = delete;

  // Forgets what it was given.
  void Reset();
  void Update(const void* data, size_t size);
  uint64_t Digest() const;

 private:
  void* state_;
};

// Identity of raw bytes: 16 bytes, big endian (the canonical form).
std::string Hash128(const void* data, size_t size);

// Lower-case hexadecimal of `bytes`.
std::string ToHex(absl::string_view bytes);

// A random number from the operating system, for incarnations. Never 0.
uint64_t RandomNonZero();

}  // namespace recon
