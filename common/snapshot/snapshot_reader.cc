#include "common/snapshot/snapshot_reader.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/snapshot/chunk.h"
#include "common/snapshot/manifest.h"

namespace recon {
namespace {

// The same code, with the file in front of the text.
absl::Status In(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::vector<Generation>> SnapshotReader::List() const {
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, store_->List("manifests/"));
  std::vector<Generation> generations;
  for (const std::string& name : names) {
    const auto generation = GenerationOfName(name);
    if (generation.ok()) generations.push_back(*generation);
  }
  return generations;
}

absl::StatusOr<Manifest> SnapshotReader::ReadManifest(Generation generation) const {
  const std::string name = ManifestName(generation);
  RECON_ASSIGN_OR_RETURN(const uint64_t size, store_->Size(name));
  RECON_ASSIGN_OR_RETURN(const std::string bytes, store_->Read(name, 0, size));
  absl::StatusOr<Manifest> manifest = DecodeManifest(bytes);
  if (!manifest.ok()) return In(name, manifest.status());
  if (manifest->generation() != generation.value()) {
    return absl::DataLossError(absl::StrCat(name, ": holds generation ", manifest->generation()));
  }
  return manifest;
}

absl::StatusOr<std::vector<PageRef>> SnapshotReader::ReadChunk(const Manifest& manifest, int index) const {
  const ChunkEntry& entry = manifest.chunks(index);
  const std::string& pack = manifest.packs(entry.pack()).name();
  const absl::StatusOr<std::string> bytes = store_->Read(pack, entry.offset(), entry.stored_bytes());
  if (!bytes.ok()) {
    // The manifest promises the pack: that it is absent is damage, not an answer.
    return absl::DataLossError(absl::StrCat("shard ", entry.shard(), ": ", bytes.status().message()));
  }
  std::vector<PageRef> pages;
  for (int i = 0; i < entry.page_hash_size(); ++i) pages.push_back(PageRef::Zeroed());
  const std::vector<std::string> hashes(entry.page_hash().begin(), entry.page_hash().end());
  const ChunkId id{entry.shard(), entry.role(), manifest.generation()};
  const absl::Status decoded =
      DecodeChunk(*bytes, id, static_cast<uint32_t>(entry.raw_bytes() / sizeof(float)), hashes, &pages);
  if (!decoded.ok()) return In(absl::StrCat(pack, " at byte ", entry.offset()), decoded);
  return pages;
}

absl::Status SnapshotReader::Verify(Generation generation,
                                    const std::function<void(int, int)>& progress) const {
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(generation));
  for (int i = 0; i < manifest.chunks_size(); ++i) {
    RECON_RETURN_IF_ERROR(ReadChunk(manifest, i).status());
    if (progress) progress(i + 1, manifest.chunks_size());
  }
  return absl::OkStatus();
}

}  // namespace recon
