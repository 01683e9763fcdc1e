#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/snapshot/carried_tensors.h"
#include "common/storage/object_store.h"
#include "common/tensor/param_layout.h"
#include "proto/manifest.pb.h"
#include "server/durability/retention.h"
#include "server/store/shard.h"

namespace recon {

// Publishes snapshots: packs first, the manifest last. Pages that have not changed since the snapshot before
// stay where they are and are not written again, but after half as many snapshots as are kept. Used by one
// thread at a time; encodes on threads of its own.
class SnapshotWriter {
 public:
  struct Options {
    int zstd_level = 1;
    int threads = 2;  // That encode when somebody waits for it.
    RetentionRules keep;
    // No lock keeps another server of the job away, which was taken for dead, or takes us for it: names of
    // packs are drawn by chance, and what may be the other's is left alone.
    bool shared = false;
  };
  // What the manifest says besides the state.
  struct Description {
    std::string optimizer;
    int state_planes = 0;
    uint64_t sequence = 0;
    uint64_t log_from = 0;  // 0: sequence + 1.
    uint64_t cluster_epoch = 0;
    uint64_t job_id = 0;
    uint64_t history = 0;
    uint64_t frontier_step = 0;
    int64_t created_unix_ms = 0;
    std::string reason;
    std::optional<ControlColumns> control;
  };

  // Whether training goes first (one thread of low priority), or somebody waits for the snapshot.
  enum class Pace { kBackground, kNow };

  // `store` must outlive the writer.
  SnapshotWriter(ObjectStore* store, const Options& options) : store_(store), options_(options) {}

  // Thread-safe. While there are more calls with 1 than with -1, a snapshot in the background takes all the
  // time it needs: others wait behind it.
  void Hurry(int change) {
    const int before = hurry_.fetch_add(change);
    RECON_CHECK_GE(before + change, 0, "who does not wait any more has not waited");
  }

  // A snapshot of this store that has just been read in full and found good: the next one may refer to its
  // pages, and it is kept until two newer ones are there.
  void NoteRestored(const Manifest& manifest);

  // What comes along unchanged with the snapshots to come; null: nothing.
  void SetCarried(std::shared_ptr<const CarriedTensors> carried) { carried_ = std::move(carried); }

  // Publishes `shards` as the generation after the newest; their pages are given back one by one, as they are
  // written. On failure nothing is published and what was
  // written is removed; the generations before are untouched.
  absl::StatusOr<Manifest> Write(const ParamLayout& layout, std::vector<ShardCut> shards,
                                 const Description& description, Pace pace = Pace::kNow);

  // The same in steps, for a state that several servers hold: each writes its part, and one publishes them
  // all.
  absl::StatusOr<Generation> NextGeneration();
  // Writes the pages of those of `shards` that have any; others are of other servers. What is returned has
  // their packs, shards and chunks and nothing else.
  absl::StatusOr<Manifest> WritePart(const ParamLayout& layout, std::vector<ShardCut> shards,
                                     Generation generation, uint32_t server, Pace pace);
  // Joins the parts, which must have every shard of the model once, and puts the manifest under its name.
  // What it has of `servers` stays as it is.
  absl::StatusOr<Manifest> Publish(const ParamLayout& layout, const Description& description,
                                   Generation generation, std::vector<Manifest> parts,
                                   std::vector<ServerPart> servers = {});
  // A snapshot that this writer has a part in is published: pages that do not change refer to it.
  void NotePublished(const Manifest& manifest);
  // Removes what was written for snapshots that were not published.
  void RemoveUnpublished();

  // Removes generations that the rules do not keep, and packs that no manifest names. Manifests go first:
  // a crash in between leaves packs without a manifest, never the reverse.
  absl::Status CollectGarbage();
  // What CollectGarbage() would remove.
  absl::StatusOr<std::vector<Generation>> Expired();

 private:
  // Pinned, or being read.
  absl::StatusOr<std::set<Generation>> Held();
  absl::Status RemoveMarksBut(const std::vector<Generation>& expired);
  absl::Status RemoveOrphanPacks();
  absl::Status WritePacks(const ParamLayout& layout, std::vector<ShardCut> shards, uint32_t server, Pace pace,
                          Manifest* manifest);

  ObjectStore* store_;
  Options options_;
  // Of the newest snapshot that this process restored or wrote.
  std::optional<Manifest> base_;
  std::optional<Generation> restored_;
  std::shared_ptr<const CarriedTensors> carried_;
  std::set<std::string> unpublished_;  // Packs that this process has written.
  int published_ = 0;
  std::atomic<int> hurry_{0};
};

}  // namespace recon
