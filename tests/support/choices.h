#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace recon {

// Bytes, of a fuzzer or a random generator, read as choices. Beyond their end every choice is the first one.
class Choices {
 public:
  // The bytes must outlive it.
  Choices(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  uint8_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // 0 to `options` - 1.
  uint32_t Of(uint32_t options) { return options <= 256 ? Byte() % options : Number32() % options; }
  bool Yes() { return Of(2) == 1; }
  uint32_t Number32() { return Raw<uint32_t>(); }
  // Small, or at a limit of its type, or any.
  uint64_t Number() {
    switch (Of(4)) {
      case 0:
        return Of(8);
      case 1:
        return UINT64_MAX - Of(4);
      case 2:
        return uint64_t{1} << Of(64);
      default:
        return Raw<uint64_t>();
    }
  }
  // Of any bits: not a number and infinite, too.
  double Real() { return Yes() ? Raw<double>() : static_cast<double>(Of(100)) / 10; }
  std::string Bytes(size_t size_max) {
    std::string bytes;
    for (size_t left = Of(static_cast<uint32_t>(size_max) + 1); left > 0 && !empty(); --left) {
      bytes.push_back(static_cast<char>(Byte()));
    }
    return bytes;
  }

 private:
  template <typename T>
  T Raw() {
    uint8_t bytes[sizeof(T)];
    for (uint8_t& byte : bytes) byte = Byte();
    T value;
    std::memcpy(&value, bytes, sizeof(T));
    return value;
  }

  const uint8_t* data_;
  size_t left_;
};

}  // namespace recon
