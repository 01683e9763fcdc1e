#pragma once

#include <functional>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/snapshot/page_codec.h"
#include "common/storage/object_store.h"
#include "common/tensor/page.h"
#include "proto/manifest.pb.h"

namespace recon {

// Reads published snapshots. Needs no server and never writes. Thread-safe if the store is.
class SnapshotReader {
 public:
  // `store` must outlive the reader.
  explicit SnapshotReader(ObjectStore* store) : store_(store) {}

  // Published generations, oldest first.
  absl::StatusOr<std::vector<Generation>> List() const;

  // Generations that somebody has pinned (FORMAT.md): no rule removes them.
  absl::StatusOr<std::set<Generation>> Pinned() const;

  // NotFound; DataLoss if the manifest does not verify; FailedPrecondition if it is of another version;
  // Internal, or the store's own error, if it could not be read.
  absl::StatusOr<Manifest> ReadManifest(Generation generation) const;

  // The pages of chunk `index` of the manifest, checked against their hashes. `stats` (may be null) gets what
  // their planes add to it.
  absl::StatusOr<std::vector<PageRef>> ReadChunk(const Manifest& manifest, int index,
                                                 PlaneStats* stats = nullptr) const;
  // The same of `count` chunks that follow each other; what lies side by side in a pack is read together.
  absl::StatusOr<std::vector<std::vector<PageRef>>> ReadChunks(const Manifest& manifest, int first_chunk,
                                                               int count, PlaneStats* stats = nullptr) const;

  // Reads everything back. `progress` (may be empty) is called with chunks done and their number.
  absl::Status Verify(Generation generation, const std::function<void(int, int)>& progress) const;

 private:
  ObjectStore* store_;
};

}  // namespace recon
