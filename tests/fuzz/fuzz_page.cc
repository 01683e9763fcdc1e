#include <cstdint>
#include <string>
#include <vector>

#include "common/snapshot/page_codec.h"

// Any bytes as a page of 100 values, and as the planes of one whose checksum is right.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static recon::PageCodec codec;
  std::vector<float> values(100);
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  // No page has that hash.
  if (codec.Decode(bytes, {0, 0, 0, 1}, std::string(16, 'x'), absl::MakeSpan(values)).ok()) __builtin_trap();
  codec.DecodePlanes(bytes, absl::MakeSpan(values)).IgnoreError();
  return 0;
}
