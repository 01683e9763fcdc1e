#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tensor/page.h"

namespace recon {

// One shard's pages in one role, as a pack holds them; the grammar is in FORMAT.md. Pure functions.

struct ChunkId {
  uint32_t shard = 0;
  uint32_t role = 0;
  uint64_t generation = 0;
};

struct EncodedChunk {
  std::string bytes;
  uint64_t raw_bytes = 0;
  // XXH3-128 of each page's raw bytes.
  std::vector<std::string> page_hashes;
};

// `params` is the number of values in the pages together. `zstd_level` as zstd's own levels.
EncodedChunk EncodeChunk(const ChunkId& id, const std::vector<PageRef>& pages, uint32_t params,
                         int zstd_level);

// Fills `pages` (enough of them for `params` values) from an encoded chunk. DataLoss, saying what differs,
// unless magic, version, identity, lengths, checksum and every page's hash are as expected.
absl::Status DecodeChunk(absl::string_view bytes, const ChunkId& expected, uint32_t params,
                         const std::vector<std::string>& page_hashes, std::vector<PageRef>* pages);

// Adds one page to the bytes a state root is the hash of.
void AppendRootEntry(uint32_t shard, uint32_t role, uint32_t page, absl::string_view page_hash,
                     std::string* root_bytes);

}  // namespace recon
