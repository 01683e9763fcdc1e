#include "common/snapshot/chunk.h"

#include <zstd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr char kMagic[4] = {'R', 'C', 'N', 'K'};
constexpr uint16_t kVersion = 1;
enum Encoding : uint16_t { kRaw = 0, kPlanesZstd = 1 };

struct Header {
  char magic[4];
  uint16_t version;
  uint16_t encoding;
  uint32_t shard;
  uint32_t role;
  uint64_t generation;
  uint64_t raw_bytes;
  uint64_t stored_bytes;
  uint64_t checksum;
};
constexpr size_t kHeaderBytes = 4 + 2 + 2 + 4 + 4 + 8 + 8 + 8 + 8;
static_assert(sizeof(Header) == kHeaderBytes);

uint32_t PageValues(uint32_t params, size_t page) {
  return std::min<uint32_t>(kPageParams, params - static_cast<uint32_t>(page * kPageParams));
}

uint64_t Checksum(Header header, absl::string_view payload) {
  header.checksum = 0;
  std::string bytes(reinterpret_cast<const char*>(&header), kHeaderBytes);
  const uint64_t parts[2] = {Hash64(bytes.data(), bytes.size()), Hash64(payload.data(), payload.size())};
  return Hash64(parts, sizeof(parts));
}

void SplitPlanes(const std::string& raw, std::string* planes) {
  const size_t values = raw.size() / 4;
  planes->resize(raw.size());
  for (size_t i = 0; i < values; ++i) {
    for (size_t byte = 0; byte < 4; ++byte) (*planes)[byte * values + i] = raw[4 * i + byte];
  }
}

void JoinPlanes(const std::string& planes, std::string* raw) {
  const size_t values = planes.size() / 4;
  raw->resize(planes.size());
  for (size_t i = 0; i < values; ++i) {
    for (size_t byte = 0; byte < 4; ++byte) (*raw)[4 * i + byte] = planes[byte * values + i];
  }
}

absl::StatusOr<std::string> DecodePayload(const Header& header, absl::string_view payload,
                                          const std::string& name) {
  if (header.encoding == kRaw) {
    if (payload.size() != header.raw_bytes) {
      return absl::DataLossError(
          absl::StrCat(name, ": ", payload.size(), " raw bytes, expected ", header.raw_bytes));
    }
    return std::string(payload);
  }
  if (header.encoding != kPlanesZstd) {
    return absl::DataLossError(
        absl::StrCat(name, ": encoding ", header.encoding, ", newest known is ", kPlanesZstd));
  }
  std::string planes(header.raw_bytes, '\0');
  const size_t size = ZSTD_decompress(planes.data(), planes.size(), payload.data(), payload.size());
  if (ZSTD_isError(size) != 0 || size != header.raw_bytes) {
    return absl::DataLossError(
        absl::StrCat(name, ": zstd: ", ZSTD_isError(size) != 0 ? ZSTD_getErrorName(size) : "wrong size"));
  }
  std::string raw;
  JoinPlanes(planes, &raw);
  return raw;
}

}  // namespace

EncodedChunk EncodeChunk(const ChunkId& id, const std::vector<PageRef>& pages, uint32_t params,
                         int zstd_level) {
  EncodedChunk chunk;
  chunk.raw_bytes = uint64_t{params} * sizeof(float);
  std::string raw;
  raw.reserve(chunk.raw_bytes);
  for (size_t page = 0; page < pages.size(); ++page) {
    const size_t bytes = PageValues(params, page) * sizeof(float);
    raw.append(reinterpret_cast<const char*>(pages[page].data()), bytes);
    chunk.page_hashes.push_back(Hash128(pages[page].data(), bytes));
  }
  std::string planes;
  SplitPlanes(raw, &planes);
  std::string compressed(ZSTD_compressBound(planes.size()), '\0');
  const size_t size =
      ZSTD_compress(compressed.data(), compressed.size(), planes.data(), planes.size(), zstd_level);
  const bool smaller = ZSTD_isError(size) == 0 && size < raw.size();
  compressed.resize(smaller ? size : 0);
  const std::string& payload = smaller ? compressed : raw;

  Header header;
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.encoding = smaller ? kPlanesZstd : kRaw;
  header.shard = id.shard;
  header.role = id.role;
  header.generation = id.generation;
  header.raw_bytes = chunk.raw_bytes;
  header.stored_bytes = payload.size();
  header.checksum = Checksum(header, payload);
  chunk.bytes.assign(reinterpret_cast<const char*>(&header), kHeaderBytes);
  chunk.bytes += payload;
  return chunk;
}

absl::Status DecodeChunk(absl::string_view bytes, const ChunkId& expected, uint32_t params,
                         const std::vector<std::string>& page_hashes, std::vector<PageRef>* pages) {
  const std::string name = absl::StrCat("chunk of shard ", expected.shard, " role ", expected.role);
  if (bytes.size() < kHeaderBytes) {
    return absl::DataLossError(
        absl::StrCat(name, ": ", bytes.size(), " bytes, its header has ", kHeaderBytes));
  }
  Header header;
  std::memcpy(&header, bytes.data(), kHeaderBytes);
  const absl::string_view payload = bytes.substr(kHeaderBytes);
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) {
    return absl::DataLossError(absl::StrCat(name, ": no chunk starts here (bad magic)"));
  }
  if (header.version != kVersion) {
    return absl::DataLossError(
        absl::StrCat(name, ": version ", header.version, ", newest known is ", kVersion));
  }
  if (header.shard != expected.shard || header.role != expected.role ||
      header.generation != expected.generation) {
    return absl::DataLossError(absl::StrCat(name, " generation ", expected.generation, ": found shard ",
                                            header.shard, " role ", header.role, " generation ",
                                            header.generation));
  }
  if (header.stored_bytes != payload.size() || header.raw_bytes != uint64_t{params} * sizeof(float)) {
    return absl::DataLossError(absl::StrCat(name, ": stored ", header.stored_bytes, " and raw ",
                                            header.raw_bytes, " bytes, expected ", payload.size(), " and ",
                                            uint64_t{params} * sizeof(float)));
  }
  const uint64_t checksum = Checksum(header, payload);
  if (checksum != header.checksum) {
    return absl::DataLossError(
        absl::StrFormat("%s: checksum %#x, expected %#x", name, checksum, header.checksum));
  }
  RECON_ASSIGN_OR_RETURN(const std::string raw, DecodePayload(header, payload, name));
  if (page_hashes.size() != pages->size()) {
    return absl::DataLossError(
        absl::StrCat(name, ": ", page_hashes.size(), " page hashes, expected ", pages->size()));
  }
  for (size_t page = 0; page < pages->size(); ++page) {
    const char* from = raw.data() + page * kPageBytes;
    const size_t size = PageValues(params, page) * sizeof(float);
    const std::string hash = Hash128(from, size);
    if (hash != page_hashes[page]) {
      return absl::DataLossError(absl::StrCat(name, " page ", page, ": hash ", ToHex(hash), ", expected ",
                                              ToHex(page_hashes[page])));
    }
    bool cloned;
    std::memcpy((*pages)[page].Writable(&cloned), from, size);
  }
  return absl::OkStatus();
}

void AppendRootEntry(uint32_t shard, uint32_t role, uint32_t page, absl::string_view page_hash,
                     std::string* root_bytes) {
  const uint32_t numbers[3] = {shard, role, page};
  root_bytes->append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  root_bytes->append(page_hash.data(), page_hash.size());
}

}  // namespace recon
