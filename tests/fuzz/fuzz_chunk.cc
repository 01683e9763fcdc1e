#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "common/snapshot/chunk.h"

// Any bytes as a chunk of a small shard.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static std::vector<recon::PageRef> pages = {recon::PageRef::Zeroed()};
  const std::vector<std::string> hashes = {std::string(16, 'x')};
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (recon::DecodeChunk(bytes, {0, 0, 1}, 100, hashes, &pages).ok())
    __builtin_trap();  // No page has that hash.
  return 0;
}
