#include "common/snapshot/page_codec.h"

// For ZSTD_c_literalCompressionMode: a frame of Huffman codes alone is one that every zstd reads.
#define ZSTD_STATIC_LINKING_ONLY
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/snapshot/plane_kernels.h"
#include "common/tensor/page.h"

namespace recon {
namespace {

constexpr char kMagic[4] = {'R', 'C', 'N', 'P'};
constexpr uint8_t kVersion = 2;
enum Encoding : uint8_t { kRaw = 0, kPlanes = 1 };

struct Header {
  char magic[4];
  uint8_t version;
  uint8_t encoding;
  uint16_t zero;
  uint32_t shard;
  uint32_t role;
  uint32_t page;
  uint32_t raw_bytes;
  uint32_t stored_bytes;
  uint32_t zero2;
  uint64_t generation;
  uint64_t checksum;
};
constexpr size_t kHeaderBytes = 48;
static_assert(sizeof(Header) == kHeaderBytes);

struct PlaneHead {
  uint32_t bytes;
  uint8_t code;
  uint8_t zero[3];
};
static_assert(sizeof(PlaneHead) == 8);

// What a plane looks like, from three pieces of it.
struct Sample {
  double entropy = 0;  // Bits a byte, of frequencies alone.
  double largest = 0;  // Share of the most frequent byte.
};

Sample Look(absl::string_view plane) {
  constexpr size_t kPieces = 3, kPieceBytes = 2048;
  std::array<uint32_t, 256> counts{};
  uint32_t total = 0;
  const size_t piece = std::min(kPieceBytes, plane.size());
  for (size_t p = 0; p < kPieces; ++p) {
    const size_t begin = (plane.size() - piece) / (kPieces - 1) * p;
    for (size_t i = 0; i < piece; ++i) ++counts[static_cast<uint8_t>(plane[begin + i])];
    total += static_cast<uint32_t>(piece);
  }
  Sample sample;
  for (const uint32_t count : counts) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / total;
    sample.entropy -= share * std::log2(share);
    sample.largest = std::max(sample.largest, share);
  }
  return sample;
}

uint64_t Checksum(Header header, absl::string_view payload) {
  header.checksum = 0;
  const uint64_t parts[2] = {Hash64(&header, kHeaderBytes), Hash64(payload.data(), payload.size())};
  return Hash64(parts, sizeof(parts));
}

std::string NameOf(const PageId& id) {
  return absl::StrCat("shard ", id.shard, " role ", id.role, " page ", id.page);
}

}  // namespace

struct PageCodec::Contexts {
  Contexts() : compress(ZSTD_createCCtx()), decompress(ZSTD_createDCtx()) {}
  ~Contexts() {
    ZSTD_freeCCtx(compress);
    ZSTD_freeDCtx(decompress);
  }
  ZSTD_CCtx* compress;
  ZSTD_DCtx* decompress;
  std::vector<char> planes = std::vector<char>(kPageBytes);
  std::vector<char> compressed = std::vector<char>(ZSTD_compressBound(kPageParams));
};

PageCodec::PageCodec() : contexts_(std::make_unique<Contexts>()) {}
PageCodec::~PageCodec() = default;

absl::string_view PageCodec::EncodePlane(absl::string_view plane, int level, PlaneCode* code) {
  // Below this the frequencies of a few thousand bytes gain less than a frame costs.
  constexpr double kWorthwhileBits = 7.6;
  constexpr double kRepeats = 0.6;
  constexpr int kFrequenciesOnly = -1000;
  *code = PlaneCode::kRaw;
  const Sample sample = Look(plane);
  if (sample.entropy > kWorthwhileBits) return plane;
  ZSTD_CCtx* context = contexts_->compress;
  const bool repeats = sample.largest > kRepeats;
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel,
                         level > 1 ? level
                         : repeats ? 1
                                   : kFrequenciesOnly);
  ZSTD_CCtx_setParameter(context, ZSTD_c_literalCompressionMode, ZSTD_ps_enable);
  const size_t size = ZSTD_compress2(context, contexts_->compressed.data(), contexts_->compressed.size(),
                                     plane.data(), plane.size());
  if (ZSTD_isError(size) != 0 || size >= plane.size()) return plane;
  *code = PlaneCode::kZstd;
  return {contexts_->compressed.data(), size};
}

void PageCodec::Encode(const PageId& id, absl::Span<const float> values, int level, std::string* out) {
  RECON_CHECK(!values.empty() && values.size() <= kPageParams);
  const size_t raw_bytes = values.size() * sizeof(float);
  const size_t begin = out->size();
  const size_t payload_begin = begin + kHeaderBytes;
  const size_t planes_begin = payload_begin + kPlaneCount * sizeof(PlaneHead);
  out->resize(planes_begin);
  SplitPlanes(values.data(), values.size(), contexts_->planes.data());
  for (size_t plane = 0; plane < kPlaneCount; ++plane) {
    PlaneCode code;
    const absl::string_view stored =
        EncodePlane({contexts_->planes.data() + plane * values.size(), values.size()}, level, &code);
    const PlaneHead head{static_cast<uint32_t>(stored.size()), static_cast<uint8_t>(code), {}};
    std::memcpy(&(*out)[payload_begin + plane * sizeof(head)], &head, sizeof(head));
    out->append(stored.data(), stored.size());
    stats_.raw_bytes[plane] += values.size();
    stats_.stored_bytes[plane] += stored.size();
  }
  const bool smaller = out->size() - payload_begin < raw_bytes;
  if (!smaller) {
    out->resize(payload_begin);
    out->append(reinterpret_cast<const char*>(values.data()), raw_bytes);
  }
  Header header{};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = kVersion;
  header.encoding = smaller ? kPlanes : kRaw;
  header.shard = id.shard;
  header.role = id.role;
  header.page = id.page;
  header.raw_bytes = static_cast<uint32_t>(raw_bytes);
  header.stored_bytes = static_cast<uint32_t>(out->size() - payload_begin);
  header.generation = id.generation;
  header.checksum = Checksum(header, absl::string_view(*out).substr(payload_begin));
  std::memcpy(&(*out)[begin], &header, kHeaderBytes);
}

absl::Status PageCodec::DecodePlanes(absl::string_view payload, absl::Span<float> values) {
  const auto damaged = [](const auto&... what) { return absl::DataLossError(absl::StrCat(what...)); };
  if (values.size() > kPageParams) return damaged(values.size(), " values, a page has ", kPageParams);
  size_t at = kPlaneCount * sizeof(PlaneHead);
  if (payload.size() < at) return damaged(payload.size(), " bytes, the heads of the planes have ", at);
  std::array<const char*, kPlaneCount> planes;
  for (size_t plane = 0; plane < kPlaneCount; ++plane) {
    PlaneHead head;
    std::memcpy(&head, payload.data() + plane * sizeof(head), sizeof(head));
    if (head.bytes > payload.size() - at) {
      return damaged("plane ", plane, " has ", head.bytes, " bytes, ", payload.size() - at, " are left");
    }
    const char* stored = payload.data() + at;
    at += head.bytes;
    if (head.code == static_cast<uint8_t>(PlaneCode::kRaw) && head.bytes == values.size()) {
      planes[plane] = stored;
    } else if (head.code == static_cast<uint8_t>(PlaneCode::kZstd)) {
      char* out = contexts_->planes.data() + plane * values.size();
      const size_t size = ZSTD_decompressDCtx(contexts_->decompress, out, values.size(), stored, head.bytes);
      if (ZSTD_isError(size) != 0) return damaged("plane ", plane, ": zstd: ", ZSTD_getErrorName(size));
      if (size != values.size())
        return damaged("plane ", plane, " holds ", size, " bytes, not ", values.size());
      planes[plane] = out;
    } else {
      return damaged("plane ", plane, " has ", head.bytes, " bytes of code ", head.code);
    }
    stats_.raw_bytes[plane] += values.size();
    stats_.stored_bytes[plane] += head.bytes;
  }
  if (at != payload.size()) return damaged(payload.size() - at, " bytes behind the planes");
  JoinPlanes(planes, values.size(), values.data());
  return absl::OkStatus();
}

absl::Status PageCodec::Decode(absl::string_view bytes, const PageId& expected, absl::string_view hash,
                               absl::Span<float> values) {
  const auto damaged = [&](const auto&... what) {
    return absl::DataLossError(absl::StrCat(NameOf(expected), ": ", what...));
  };
  if (bytes.size() < kHeaderBytes) return damaged(bytes.size(), " bytes, a header has ", kHeaderBytes);
  Header header;
  std::memcpy(&header, bytes.data(), kHeaderBytes);
  const absl::string_view payload = bytes.substr(kHeaderBytes);
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0)
    return damaged("no page starts here (bad magic)");
  if (header.version != kVersion) return damaged("version ", header.version, ", the one known is ", kVersion);
  if (header.shard != expected.shard || header.role != expected.role || header.page != expected.page ||
      header.generation != expected.generation) {
    return damaged("found ", NameOf({header.shard, header.role, header.page, 0}), " of generation ",
                   header.generation, ", expected generation ", expected.generation);
  }
  const size_t raw_bytes = values.size() * sizeof(float);
  if (header.stored_bytes != payload.size() || header.raw_bytes != raw_bytes) {
    return damaged("stored ", header.stored_bytes, " and raw ", header.raw_bytes, " bytes, expected ",
                   payload.size(), " and ", raw_bytes);
  }
  const uint64_t checksum = Checksum(header, payload);
  if (checksum != header.checksum) {
    return damaged(absl::StrFormat("checksum %#x, expected %#x", checksum, header.checksum));
  }
  if (header.encoding == kRaw) {
    if (payload.size() != raw_bytes) return damaged(payload.size(), " raw bytes, expected ", raw_bytes);
    std::memcpy(values.data(), payload.data(), raw_bytes);
    for (size_t plane = 0; plane < kPlaneCount; ++plane) {
      stats_.raw_bytes[plane] += values.size();
      stats_.stored_bytes[plane] += values.size();
    }
  } else if (header.encoding != kPlanes) {
    return damaged("encoding ", header.encoding, ", known are ", kRaw, " and ", kPlanes);
  } else {
    const absl::Status status = DecodePlanes(payload, values);
    if (!status.ok()) return damaged(status.message());
  }
  const std::string found = Hash128(values.data(), raw_bytes);
  if (found != hash) return damaged("hash ", ToHex(found), ", expected ", ToHex(hash));
  return absl::OkStatus();
}

void PageCodec::AddStatsTo(PlaneStats* stats) const {
  for (size_t plane = 0; plane < kPlaneCount; ++plane) {
    stats->raw_bytes[plane] += stats_.raw_bytes[plane];
    stats->stored_bytes[plane] += stats_.stored_bytes[plane];
  }
}

}  // namespace recon
