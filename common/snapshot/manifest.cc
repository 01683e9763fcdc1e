#include "common/snapshot/manifest.h"

#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/snapshot/control_state.h"
#include "common/tensor/param_layout.h"

namespace recon {
namespace {

constexpr char kMagic[] = "RCNMANIF";
constexpr size_t kMagicBytes = 8;
constexpr uint32_t kVersion = 5;
constexpr size_t kHeaderBytes = kMagicBytes + 4 + 8;
constexpr size_t kChecksumBytes = 8;
constexpr uint32_t kStatePlanesMax = 8;

template <typename T>
T ReadNumber(absl::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(value));
  return value;
}

template <typename T>
void AppendNumber(T value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

absl::Status CheckChunk(const Manifest& manifest, const ShardPlacement& shard, int index) {
  const uint32_t roles = manifest.state_planes() + 1;
  const ChunkEntry& chunk = manifest.chunks(index);
  if (chunk.shard() != index / roles || chunk.role() != index % roles) {
    return absl::DataLossError(absl::StrCat("manifest: chunk ", index, " is shard ", chunk.shard(), " role ",
                                            chunk.role(), ", expected shard ", index / roles, " role ",
                                            index % roles));
  }
  if (chunk.raw_bytes() != uint64_t{shard.size} * sizeof(float) ||
      chunk.page_hash_size() != static_cast<int>(shard.pages())) {
    return absl::DataLossError(absl::StrCat(
        "manifest: chunk ", index, " has ", chunk.raw_bytes(), " bytes and ", chunk.page_hash_size(),
        " page hashes, its shard has ", shard.size, " values in ", shard.pages(), " pages"));
  }
  const int pages = chunk.page_hash_size();
  if (chunk.pack_size() != pages || chunk.offset_size() != pages || chunk.stored_bytes_size() != pages) {
    return absl::DataLossError(absl::StrCat("manifest: chunk ", index, " has ", pages, " pages, ",
                                            chunk.pack_size(), " packs, ", chunk.offset_size(),
                                            " offsets and ", chunk.stored_bytes_size(), " sizes of them"));
  }
  for (int page = 0; page < pages; ++page) {
    const uint32_t pack = chunk.pack(page);
    if (pack >= static_cast<uint32_t>(manifest.packs_size()) ||
        chunk.offset(page) > manifest.packs(static_cast<int>(pack)).bytes() ||
        chunk.stored_bytes(page) > manifest.packs(static_cast<int>(pack)).bytes() - chunk.offset(page) ||
        chunk.stored_bytes(page) > limits::kEncodedPageBytesMax) {
      return absl::DataLossError(absl::StrCat("manifest: chunk ", index, " page ", page, " lies in pack ",
                                              pack, " at ", chunk.offset(page), "+", chunk.stored_bytes(page),
                                              ", outside of it"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCarried(const Manifest& manifest) {
  if (!manifest.has_carried()) return absl::OkStatus();
  const CarriedEntry& carried = manifest.carried();
  if (carried.pack() >= static_cast<uint32_t>(manifest.packs_size()) ||
      carried.bytes() > limits::kCarriedBytesMax ||
      carried.offset() > manifest.packs(static_cast<int>(carried.pack())).bytes() ||
      carried.bytes() > manifest.packs(static_cast<int>(carried.pack())).bytes() - carried.offset()) {
    return absl::DataLossError(absl::StrCat("manifest: tensors that are not trained lie in pack ",
                                            carried.pack(), " at ", carried.offset(), "+", carried.bytes(),
                                            ", outside of it"));
  }
  return absl::OkStatus();
}

absl::Status CheckContent(const Manifest& manifest) {
  const auto layout = ParamLayout::Create(manifest.model());
  if (!layout.ok()) return absl::DataLossError(absl::StrCat("manifest: ", layout.status().message()));
  if (manifest.state_planes() > kStatePlanesMax) {
    return absl::DataLossError(absl::StrCat("manifest: ", manifest.state_planes(), " state planes"));
  }
  const uint64_t chunks = uint64_t{layout->shard_count()} * (manifest.state_planes() + 1);
  if (static_cast<uint64_t>(manifest.chunks_size()) != chunks ||
      static_cast<uint32_t>(manifest.shards_size()) != layout->shard_count()) {
    return absl::DataLossError(absl::StrCat("manifest: ", manifest.chunks_size(), " chunks of ",
                                            manifest.shards_size(), " shards, expected ", chunks, " of ",
                                            layout->shard_count()));
  }
  for (const PackEntry& pack : manifest.packs()) {
    const absl::StatusOr<Generation> generation = GenerationOfName(pack.name());
    if (!generation.ok() || !absl::StartsWith(pack.name(), "packs/") ||
        generation->value() > manifest.generation()) {
      return absl::DataLossError(absl::StrCat("manifest: ", pack.name(), " is no pack of generation ",
                                              manifest.generation(), " or before"));
    }
  }
  for (int i = 0; i < manifest.shards_size(); ++i) {
    if (manifest.shards(i).shard() != static_cast<uint32_t>(i)) {
      return absl::DataLossError(
          absl::StrCat("manifest: shard ", i, " is numbered ", manifest.shards(i).shard()));
    }
    if (manifest.shards(i).ledger() >= static_cast<uint32_t>(manifest.ledgers_size())) {
      return absl::DataLossError(absl::StrCat("manifest: shard ", i, " has ledger ",
                                              manifest.shards(i).ledger(), " of ", manifest.ledgers_size()));
    }
  }
  for (int i = 0; i < manifest.chunks_size(); ++i) {
    RECON_RETURN_IF_ERROR(CheckChunk(manifest, layout->shards()[i / (manifest.state_planes() + 1)], i));
  }
  RECON_RETURN_IF_ERROR(CheckCarried(manifest));
  if (manifest.has_control()) {
    const absl::Status control = CheckControl(manifest.control());
    if (!control.ok()) return absl::DataLossError(absl::StrCat("manifest: ", control.message()));
  }
  const auto servers = static_cast<uint32_t>(manifest.servers_size());
  if (servers == 1 || servers > limits::kServersMax) {
    return absl::DataLossError(absl::StrCat("manifest: of ", servers, " servers"));
  }
  const std::string root = ComputeStateRoot(manifest);
  if (root != manifest.state_root()) {
    return absl::DataLossError(absl::StrCat("manifest: state root ", ToHex(manifest.state_root()),
                                            ", its page hashes give ", ToHex(root)));
  }
  return absl::OkStatus();
}

}  // namespace

std::string ManifestName(Generation generation) {
  return absl::StrFormat("manifests/MANIFEST-%016x", generation.value());
}

uint32_t ServersOf(const Manifest& manifest) {
  return static_cast<uint32_t>(std::max(1, manifest.servers_size()));
}

Manifest ForServer(Manifest manifest, uint32_t server) {
  if (static_cast<int>(server) >= manifest.servers_size()) return manifest;
  const ServerPart& part = manifest.servers(static_cast<int>(server));
  manifest.set_sequence(part.sequence());
  manifest.set_log_from(part.log_from());
  return manifest;
}

const Ledger& LedgerOf(const Manifest& manifest, uint32_t shard) {
  return manifest.ledgers(static_cast<int>(manifest.shards(static_cast<int>(shard)).ledger()));
}

std::string PackName(Generation generation, uint32_t pack) {
  return absl::StrFormat("packs/PACK-%016x-%d", generation.value(), pack);
}

std::string PinName(Generation generation) { return absl::StrFormat("pins/PIN-%016x", generation.value()); }

std::string RetiredName(Generation generation) {
  return absl::StrFormat("retired/RETIRED-%016x", generation.value());
}

std::string LeaseName(Generation generation, uint64_t id) {
  return absl::StrFormat("%s%016x-%016x", kLeasePrefix, generation.value(), id);
}

absl::StatusOr<Generation> GenerationOfName(absl::string_view name) {
  constexpr size_t kDigits = 16;
  for (const absl::string_view prefix :
       {"manifests/MANIFEST-", "packs/PACK-", "pins/PIN-", "retired/RETIRED-", kLeasePrefix}) {
    if (!absl::StartsWith(name, prefix)) continue;
    const absl::string_view digits = name.substr(prefix.size(), kDigits);
    const absl::string_view rest = name.substr(prefix.size() + digits.size());
    uint64_t value = 0;
    uint32_t pack = 0;
    uint64_t lease = 0;
    const absl::string_view number = absl::StripPrefix(rest, "-");
    const bool rest_ok =
        absl::StartsWith(prefix, "packs/") ? rest != number && absl::SimpleAtoi(number, &pack)
        : prefix == kLeasePrefix
            ? rest != number && number.size() == kDigits && absl::SimpleHexAtoi(number, &lease)
            : rest.empty();
    if (digits.size() == kDigits && absl::SimpleHexAtoi(digits, &value) && rest_ok) return Generation(value);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is not the name of a manifest, a pack, a pin, a mark or a lease"));
}

std::string EncodeManifest(const Manifest& manifest) {
  const std::string payload = manifest.SerializeAsString();
  std::string bytes(kMagic, kMagicBytes);
  AppendNumber<uint32_t>(kVersion, &bytes);
  AppendNumber<uint64_t>(payload.size(), &bytes);
  bytes += payload;
  AppendNumber<uint64_t>(Hash64(bytes.data(), bytes.size()), &bytes);
  return bytes;
}

absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes || bytes.size() > limits::kManifestBytesMax) {
    return absl::DataLossError(absl::StrCat("manifest: ", bytes.size(), " bytes, allowed are ",
                                            kHeaderBytes + kChecksumBytes, " to ",
                                            limits::kManifestBytesMax));
  }
  if (bytes.substr(0, kMagicBytes) != kMagic) return absl::DataLossError("manifest: bad magic");
  const auto length = ReadNumber<uint64_t>(bytes, kMagicBytes + 4);
  if (length != bytes.size() - kHeaderBytes - kChecksumBytes) {
    return absl::DataLossError(absl::StrCat("manifest: payload length ", length, ", expected ",
                                            bytes.size() - kHeaderBytes - kChecksumBytes));
  }
  const auto stored = ReadNumber<uint64_t>(bytes, bytes.size() - kChecksumBytes);
  const uint64_t checksum = Hash64(bytes.data(), bytes.size() - kChecksumBytes);
  if (checksum != stored) {
    return absl::DataLossError(absl::StrFormat("manifest: checksum %#x, expected %#x", checksum, stored));
  }
  const auto version = ReadNumber<uint32_t>(bytes, kMagicBytes);
  if (version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("manifest: version ", version, ", the one known is ", kVersion));
  }
  Manifest manifest;
  if (!manifest.ParseFromArray(bytes.data() + kHeaderBytes, static_cast<int>(length))) {
    return absl::DataLossError("manifest: payload is not a Manifest message");
  }
  RECON_RETURN_IF_ERROR(CheckContent(manifest));
  return manifest;
}

SnapshotSizes SizesOf(const Manifest& manifest) {
  SnapshotSizes sizes;
  std::vector<bool> own;
  for (const PackEntry& pack : manifest.packs()) {
    own.push_back(GenerationOfName(pack.name()) == absl::StatusOr<Generation>(manifest.generation()));
  }
  for (const ChunkEntry& chunk : manifest.chunks()) {
    sizes.raw += chunk.raw_bytes();
    for (int page = 0; page < chunk.page_hash_size(); ++page) {
      sizes.stored += chunk.stored_bytes(page);
      if (own[chunk.pack(page)]) sizes.own += chunk.stored_bytes(page);
    }
  }
  return sizes;
}

std::string ComputeStateRoot(const Manifest& manifest) {
  std::string bytes;
  for (const ChunkEntry& chunk : manifest.chunks()) {
    for (int page = 0; page < chunk.page_hash_size(); ++page) {
      AppendNumber<uint32_t>(chunk.shard(), &bytes);
      AppendNumber<uint32_t>(chunk.role(), &bytes);
      AppendNumber<uint32_t>(static_cast<uint32_t>(page), &bytes);
      bytes += chunk.page_hash(page);
    }
  }
  return Hash128(bytes.data(), bytes.size());
}

}  // namespace recon
