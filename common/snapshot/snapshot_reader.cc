#include "common/snapshot/snapshot_reader.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/snapshot/carried_tensors.h"
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

// A page of a snapshot.
struct Place {
  int chunk = 0;  // Of those that are read.
  int page = 0;
  const ChunkEntry* entry = nullptr;

  uint32_t pack() const { return entry->pack(page); }
  uint64_t offset() const { return entry->offset(page); }
  uint64_t bytes() const { return entry->stored_bytes(page); }
  size_t values() const {
    const uint64_t before = static_cast<uint64_t>(page) * kPageParams;
    return static_cast<size_t>(std::min<uint64_t>(entry->raw_bytes() / sizeof(float) - before, kPageParams));
  }
};

// Pages from `first` on that lie side by side in a pack are read at once, up to `most` bytes: where they end,
// and their bytes.
size_t SideBySide(const std::vector<Place>& places, size_t first, uint64_t most, uint64_t* bytes) {
  size_t end = first + 1;
  *bytes = places[first].bytes();
  while (end < places.size() && places[end].pack() == places[first].pack() &&
         places[end].offset() == places[first].offset() + *bytes && *bytes + places[end].bytes() <= most) {
    *bytes += places[end++].bytes();
  }
  return end;
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
  RECON_ASSIGN_OR_RETURN(std::vector<std::vector<PageRef>> chunks, ReadChunks(manifest, index, 1, stats));
  return std::move(chunks.front());
}

absl::StatusOr<std::vector<std::vector<PageRef>>> SnapshotReader::ReadChunks(const Manifest& manifest,
                                                                             int first_chunk, int count,
                                                                             PlaneStats* stats) const {
  static thread_local PageCodec codec;
  static thread_local AlignedBuffer buffer;
  codec.ClearStats();
  std::vector<std::vector<PageRef>> chunks(static_cast<size_t>(count));
  std::vector<Place> places;
  for (int chunk = 0; chunk < count; ++chunk) {
    const ChunkEntry& entry = manifest.chunks(first_chunk + chunk);
    for (int page = 0; page < entry.page_hash_size(); ++page) places.push_back({chunk, page, &entry});
  }
  for (size_t first = 0; first < places.size();) {
    uint64_t bytes = 0;
    const size_t end = SideBySide(places, first, store_->read_bytes(), &bytes);
    const Place& begins = places[first];
    const PackEntry& pack_entry = manifest.packs(static_cast<int>(begins.pack()));
    const std::string& pack = pack_entry.name();
    RECON_ASSIGN_OR_RETURN(const Generation generation, GenerationOfName(pack));
    // From where a disk can be read without a copy.
    const uint64_t begin = AlignedBuffer::Down(begins.offset());
    const uint64_t before = begins.offset() - begin;
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
                          absl::StrCat("shard ", begins.entry->shard(), ": ", read.message()));
    }
    for (const char* at = data + before; first < end; at += places[first].bytes(), ++first) {
      const Place& place = places[first];
      std::vector<PageRef>& pages = chunks[static_cast<size_t>(place.chunk)];
      pages.push_back(place.values() == kPageParams ? PageRef::New() : PageRef::Zeroed());
      bool cloned;
      const PageId id{place.entry->shard(), place.entry->role(), static_cast<uint32_t>(place.page),
                      generation.value()};
      const absl::Status decoded = codec.Decode({at, place.bytes()}, id, place.entry->page_hash(place.page),
                                                {pages.back().Writable(&cloned), place.values()});
      if (!decoded.ok()) return In(absl::StrCat(pack, " at byte ", place.offset()), decoded);
    }
  }
  if (stats != nullptr) codec.AddStatsTo(stats);
  return chunks;
}

absl::Status SnapshotReader::Verify(Generation generation,
                                    const std::function<void(int, int)>& progress) const {
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(generation));
  RECON_RETURN_IF_ERROR(ReadCarried(store_, manifest).status());
  for (int i = 0; i < manifest.chunks_size(); ++i) {
    RECON_RETURN_IF_ERROR(ReadChunk(manifest, i).status());
    if (progress) progress(i + 1, manifest.chunks_size());
  }
  return absl::OkStatus();
}

}  // namespace recon
