#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/storage/object_store.h"
#include "common/tensor/param_layout.h"
#include "proto/manifest.pb.h"
#include "server/store/shard.h"

namespace recon {

// Publishes snapshots: packs first, the manifest last. Used by one thread at a time.
class SnapshotWriter {
 public:
  struct Options {
    int zstd_level = 1;
    int keep_last = 5;
  };
  // What the manifest says besides the state.
  struct Description {
    std::string optimizer;
    int state_planes = 0;
    uint64_t sequence = 0;
    uint64_t log_from = 0;  // 0: sequence + 1.
    uint64_t cluster_epoch = 0;
    uint64_t job_id = 0;
    uint64_t frontier_step = 0;
    int64_t created_unix_ms = 0;
    std::string reason;
  };

  // `store` must outlive the writer.
  SnapshotWriter(ObjectStore* store, const Options& options) : store_(store), options_(options) {}

  // Publishes `shards` as the generation after the newest. On failure nothing is published and what was
  // written is removed; the generations before are untouched.
  absl::StatusOr<Manifest> Write(const ParamLayout& layout, const std::vector<ShardCut>& shards,
                                 const Description& description);

  // Removes all but the newest keep_last generations, and packs no manifest names. Manifests go first:
  // a crash in between leaves packs without a manifest, never the reverse.
  absl::Status CollectGarbage();

 private:
  absl::Status RemoveOrphanPacks();
  absl::Status WritePacks(const ParamLayout& layout, const std::vector<ShardCut>& shards, Manifest* manifest);

  ObjectStore* store_;
  Options options_;
};

}  // namespace recon
