#include "common/snapshot/snapshot_reader.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/page_codec.h"
#include "common/storage/aligned_buffer.h"

namespace recon {
namespace {

// The same code, with the file in front of the text.
absl::Status In(const std::string& name, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

// A manifest that could not be read may be a good one: nobody shall take it for damaged and clear it away.
absl::Status NotDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) ? absl::InternalError(status.message()) : status;
}

// Pages from `first` on that lie side by side in a pack are read at once, up to `most` bytes: the last of
// them, and their bytes.
int SideBySide(const ChunkEntry& entry, int first, uint64_t most, uint64_t* bytes) {
  int last = first;
  *bytes = entry.stored_bytes(first);
  while (last + 1 < entry.page_hash_size() && entry.pack(last + 1) == entry.pack(first) &&
         entry.offset(last + 1) == entry.offset(first) + *bytes &&
         *bytes + entry.stored_bytes(last + 1) <= most) {
    *bytes += entry.stored_bytes(++last);
  }
  return last;
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

absl::StatusOr<std::set<Generation>> SnapshotReader::Pinned() const {
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, store_->List("pins/"));
  std::set<Generation> pinned;
  for (const std::string& name : names) {
    const auto generation = GenerationOfName(name);
    if (generation.ok()) pinned.insert(*generation);
  }
  return pinned;
}

absl::StatusOr<Manifest> SnapshotReader::ReadManifest(Generation generation) const {
  const std::string name = ManifestName(generation);
  const absl::StatusOr<uint64_t> found = store_->Size(name);
  if (!found.ok()) return NotDamage(found.status());
  const uint64_t size = *found;
  if (size > limits::kManifestBytesMax) {
    return absl::DataLossError(
        absl::StrCat(name, ": ", size, " bytes, allowed are ", limits::kManifestBytesMax));
  }
  const absl::StatusOr<std::string> read = store_->Read(name, 0, size);
  if (!read.ok()) return NotDamage(read.status());
  const std::string& bytes = *read;
  absl::StatusOr<Manifest> manifest = DecodeManifest(bytes);
  if (!manifest.ok()) return In(name, manifest.status());
  if (manifest->generation() != generation.value()) {
    return absl::DataLossError(absl::StrCat(name, ": holds generation ", manifest->generation()));
  }
  return manifest;
}

absl::StatusOr<std::vector<PageRef>> SnapshotReader::ReadChunk(const Manifest& manifest, int index,
                                                               PlaneStats* stats) const {
  const ChunkEntry& entry = manifest.chunks(index);
  static thread_local PageCodec codec;
  static thread_local AlignedBuffer buffer;
  codec.ClearStats();
  std::vector<PageRef> pages;
  uint64_t values_left = entry.raw_bytes() / sizeof(float);
  for (int first = 0; first < entry.page_hash_size();) {
    uint64_t bytes = 0;
    const int last = SideBySide(entry, first, store_->read_bytes(), &bytes);
    const PackEntry& pack_entry = manifest.packs(static_cast<int>(entry.pack(first)));
    const std::string& pack = pack_entry.name();
    RECON_ASSIGN_OR_RETURN(const Generation generation, GenerationOfName(pack));
    // From where a disk can be read without a copy.
    const uint64_t begin = AlignedBuffer::Down(entry.offset(first));
    const uint64_t before = entry.offset(first) - begin;
    // And to where it ends without a second read.
    const uint64_t size = std::min(AlignedBuffer::Up(before + bytes), pack_entry.bytes() - begin);
    char* const data = buffer.Reserve(size);
    absl::Status read = store_->ReadInto(pack, begin, size, data);
    // Bytes that are not needed may be missing.
    if (absl::IsDataLoss(read)) read = store_->ReadInto(pack, begin, before + bytes, data);
    if (!read.ok()) {
      // The manifest promises the pack: that it is absent is damage, not an answer.
      const bool damage = absl::IsNotFound(read) || absl::IsDataLoss(read);
      return absl::Status(damage ? absl::StatusCode::kDataLoss : read.code(),
                          absl::StrCat("shard ", entry.shard(), ": ", read.message()));
    }
    for (const char* at = data + before; first <= last; at += entry.stored_bytes(first), ++first) {
      const auto values = static_cast<size_t>(std::min<uint64_t>(values_left, kPageParams));
      values_left -= values;
      pages.push_back(values == kPageParams ? PageRef::New() : PageRef::Zeroed());
      bool cloned;
      const PageId id{entry.shard(), entry.role(), static_cast<uint32_t>(first), generation.value()};
      const absl::Status decoded = codec.Decode({at, entry.stored_bytes(first)}, id, entry.page_hash(first),
                                                {pages.back().Writable(&cloned), values});
      if (!decoded.ok()) return In(absl::StrCat(pack, " at byte ", entry.offset(first)), decoded);
    }
  }
  if (stats != nullptr) codec.AddStatsTo(stats);
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
