#include "server/durability/snapshot_writer.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/fault_point.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/snapshot/chunk.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/snapshot_reader.h"

namespace recon {
namespace {

// Packs of one generation, filled one after the other.
class PackSequence {
 public:
  PackSequence(ObjectStore* store, Manifest* manifest) : store_(store), manifest_(manifest) {}

  absl::Status Append(const EncodedChunk& chunk, ChunkEntry* entry) {
    if (writer_ == nullptr) RECON_RETURN_IF_ERROR(Start());
    PackEntry* pack = manifest_->mutable_packs(manifest_->packs_size() - 1);
    entry->set_pack(static_cast<uint32_t>(manifest_->packs_size() - 1));
    entry->set_offset(pack->bytes());
    entry->set_stored_bytes(chunk.bytes.size());
    RECON_RETURN_IF_ERROR(writer_->Append(chunk.bytes));
    pack->set_bytes(pack->bytes() + chunk.bytes.size());
    return pack->bytes() >= limits::kPackBytesTarget ? Close() : absl::OkStatus();
  }

  absl::Status Close() {
    if (writer_ == nullptr) return absl::OkStatus();
    const std::unique_ptr<ObjectStore::Writer> writer = std::move(writer_);
    return writer->Close();
  }

 private:
  absl::Status Start() {
    PackEntry* pack = manifest_->add_packs();
    pack->set_name(
        PackName(Generation(manifest_->generation()), static_cast<uint32_t>(manifest_->packs_size() - 1)));
    RECON_ASSIGN_OR_RETURN(writer_, store_->Create(pack->name()));
    return absl::OkStatus();
  }

  ObjectStore* store_;
  Manifest* manifest_;
  std::unique_ptr<ObjectStore::Writer> writer_;
};

}  // namespace

absl::Status SnapshotWriter::WritePacks(const ParamLayout& layout, const std::vector<ShardCut>& shards,
                                        Manifest* manifest) {
  PackSequence packs(store_, manifest);
  for (uint32_t i = 0; i < shards.size(); ++i) {
    ShardEntry* shard = manifest->add_shards();
    shard->set_shard(i);
    shard->set_version(shards[i].version);
    for (const LedgerEntry& entry : shards[i].ledger) *shard->add_ledger() = entry;
    for (uint32_t role = 0; role < shards[i].pages.size(); ++role) {
      const EncodedChunk chunk = EncodeChunk({i, role, manifest->generation()}, shards[i].pages[role],
                                             layout.shards()[i].size, options_.zstd_level);
      ChunkEntry* entry = manifest->add_chunks();
      entry->set_shard(i);
      entry->set_role(role);
      entry->set_raw_bytes(chunk.raw_bytes);
      for (const std::string& hash : chunk.page_hashes) entry->add_page_hash(hash);
      RECON_RETURN_IF_ERROR(packs.Append(chunk, entry));
    }
  }
  return packs.Close();
}

absl::StatusOr<Manifest> SnapshotWriter::Write(const ParamLayout& layout, const std::vector<ShardCut>& shards,
                                               const Description& description) {
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, SnapshotReader(store_).List());
  Manifest manifest;
  manifest.set_generation(generations.empty() ? 1 : generations.back().value() + 1);
  *manifest.mutable_model() = layout.model();
  manifest.set_optimizer(description.optimizer);
  manifest.set_state_planes(static_cast<uint32_t>(description.state_planes));
  manifest.set_sequence(description.sequence);
  manifest.set_log_from(description.log_from);
  manifest.set_cluster_epoch(description.cluster_epoch);
  manifest.set_job_id(description.job_id);
  manifest.set_frontier_step(description.frontier_step);
  manifest.set_created_unix_ms(description.created_unix_ms);
  manifest.set_reason(description.reason);
  absl::Status written = WritePacks(layout, shards, &manifest);
  RECON_FAULT_POINT("publish.before_manifest");
  if (written.ok()) {
    manifest.set_state_root(ComputeStateRoot(manifest));
    written = store_->PutIfAbsent(ManifestName(Generation(manifest.generation())), EncodeManifest(manifest));
  }
  if (written.ok()) return manifest;
  // By what is published, not by what we tried: the manifest may be there though publishing it failed.
  const absl::Status removed = RemoveOrphanPacks();
  if (!removed.ok()) spdlog::warn("snapshot {}: {}", manifest.generation(), removed.message());
  return written;
}

absl::Status SnapshotWriter::CollectGarbage() {
  const SnapshotReader reader(store_);
  RECON_ASSIGN_OR_RETURN(std::vector<Generation> generations, reader.List());
  const size_t keep = static_cast<size_t>(std::max(options_.keep_last, 1));
  while (generations.size() > keep) {
    RECON_RETURN_IF_ERROR(store_->Delete(ManifestName(generations.front())));
    RECON_FAULT_POINT("collect.after_manifest");
    generations.erase(generations.begin());
  }
  return RemoveOrphanPacks();
}

absl::Status SnapshotWriter::RemoveOrphanPacks() {
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, SnapshotReader(store_).List());
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> packs, store_->List("packs/"));
  for (const std::string& pack : packs) {
    const auto generation = GenerationOfName(pack);
    if (!generation.ok()) continue;  // Not ours: never delete what we did not write.
    if (std::find(generations.begin(), generations.end(), *generation) != generations.end()) continue;
    RECON_RETURN_IF_ERROR(store_->Delete(pack));
  }
  return absl::OkStatus();
}

}  // namespace recon
