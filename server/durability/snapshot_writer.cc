#include "server/durability/snapshot_writer.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/fault_point.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/codec/half_codec.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/page_codec.h"
#include "common/snapshot/reader_lease.h"
#include "common/snapshot/snapshot_reader.h"
#include "server/durability/encoder_threads.h"
#include "server/durability/manifest_parts.h"

namespace recon {
namespace {

// Pages that a thread takes at once; they lie side by side in a pack. Behind training few: a lane that has
// something to do waits for a millisecond, not for four.
constexpr size_t kBatchPages = 16;
constexpr size_t kBackgroundBatchPages = 4;

// One page of the state, and its entry in the manifest.
struct PageWork {
  ChunkEntry* chunk;
  int page;
  PageRef content;  // Given back as soon as it is not needed any more: lanes may be waiting for memory.
  size_t size;
  bool write = true;
  uint64_t non_finite = 0;

  absl::Span<const float> values() const { return {content.data(), size}; }
};

// The packs of a manifest, with those of the snapshot before that are still of use.
class PackTable {
 public:
  // A server that was replaced and still writes must not meet the names of the one in its place.
  PackTable(Manifest* manifest, uint32_t server, bool shared)
      : manifest_(manifest),
        own_(server * kPacksOfServer +
             (shared ? static_cast<uint32_t>(RandomNonZero() % (kPacksOfServer / 2)) : 0)) {}

  // Thread-safe; the entry's bytes are set by Finish().
  uint32_t Add(const std::string& name) {
    MutexLock lock(&mu_);
    manifest_->add_packs()->set_name(name);
    return static_cast<uint32_t>(manifest_->packs_size() - 1);
  }
  std::pair<uint32_t, std::string> AddOwn() {
    const std::string name = PackName(Generation(manifest_->generation()), own_.fetch_add(1));
    return {Add(name), name};
  }
  void Finish(uint32_t pack, uint64_t bytes) {
    MutexLock lock(&mu_);
    RECON_CHECK_LT(pack, manifest_->packs_size());
    RECON_CHECK_EQ(manifest_->packs(static_cast<int>(pack)).bytes(), 0, "a pack is finished twice");
    manifest_->mutable_packs(static_cast<int>(pack))->set_bytes(bytes);
  }

 private:
  Mutex mu_;
  // Names of packs of one generation differ by their numbers.
  static constexpr uint32_t kPacksOfServer = 1 << 20;

  Manifest* const manifest_;
  std::atomic<uint32_t> own_;
};

// One thread's packs, filled one after the other.
class PackSequence {
 public:
  PackSequence(ObjectStore* store, PackTable* table) : store_(store), table_(table) {}

  // Where the bytes begin in pack().
  absl::StatusOr<uint64_t> Append(const std::string& bytes) {
    if (writer_ == nullptr) {
      std::string name;
      std::tie(pack_, name) = table_->AddOwn();
      RECON_ASSIGN_OR_RETURN(writer_, store_->Create(name));
      bytes_ = 0;
    }
    RECON_RETURN_IF_ERROR(writer_->Append(bytes));
    bytes_ += bytes.size();
    return bytes_ - bytes.size();
  }
  uint32_t pack() const { return pack_; }
  bool full() const { return bytes_ >= limits::kPackBytesTarget; }

  absl::Status Close() {
    if (writer_ == nullptr) return absl::OkStatus();
    table_->Finish(pack_, bytes_);
    const std::unique_ptr<ObjectStore::Writer> writer = std::move(writer_);
    return writer->Close();
  }

 private:
  ObjectStore* const store_;
  PackTable* const table_;
  std::unique_ptr<ObjectStore::Writer> writer_;
  uint32_t pack_ = 0;
  uint64_t bytes_ = 0;
};

// While the page is in the cache. Most have none, which is seen sooner than counted.
uint64_t NonFiniteIn(const PageWork& page) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(page.content.data());
  return AllFinite32(bytes, page.size) ? 0 : CountNonFinite(page.content.data(), page.size);
}

// Entries for every page there is, without places.
std::vector<PageWork> ListPages(const ParamLayout& layout, std::vector<ShardCut> shards, Manifest* manifest) {
  RECON_CHECK_EQ(shards.size(), layout.shard_count());
  std::vector<PageWork> work;
  LedgerTable ledgers(manifest);
  for (uint32_t i = 0; i < shards.size(); ++i) {
    if (shards[i].pages.empty()) continue;  // Another server's.
    const ShardPlacement& placement = layout.shards()[i];
    ShardEntry* shard = manifest->add_shards();
    shard->set_shard(i);
    shard->set_version(shards[i].version);
    shard->set_first_open_step(shards[i].first_open_step);
    shard->set_mean_pushes(shards[i].mean_pushes);
    Ledger ledger;
    ledger.mutable_entries()->Assign(shards[i].ledger.begin(), shards[i].ledger.end());
    shard->set_ledger(ledgers.Add(ledger));
    for (uint32_t role = 0; role < shards[i].pages.size(); ++role) {
      ChunkEntry* chunk = manifest->add_chunks();
      chunk->set_shard(i);
      chunk->set_role(role);
      chunk->set_raw_bytes(uint64_t{placement.size} * sizeof(float));
      const auto pages = static_cast<int>(placement.pages());
      RECON_CHECK_EQ(shards[i].pages[role].size(), pages);
      chunk->mutable_pack()->Resize(pages, 0);
      chunk->mutable_offset()->Resize(pages, 0);
      chunk->mutable_stored_bytes()->Resize(pages, 0);
      for (int page = 0; page < pages; ++page) {
        chunk->add_page_hash();
        work.push_back({chunk, page, std::move(shards[i].pages[role][static_cast<size_t>(page)]),
                        placement.PageSize(static_cast<uint32_t>(page))});
      }
    }
  }
  return work;
}

// Has unchanged pages refer to where the snapshot before has them. Not to packs of generations before
// `oldest`, so that not all snapshots hang on one file; nor to those of which less than half is still of use:
// they would stay for ever; nor to any that is not as long as it was.
void ReferToBase(const Manifest& base, Generation oldest, ObjectStore* store, std::vector<PageWork>* work,
                 PackTable* table) {
  std::map<std::pair<uint32_t, uint32_t>, const ChunkEntry*> chunks;
  for (const ChunkEntry& chunk : base.chunks()) chunks[{chunk.shard(), chunk.role()}] = &chunk;
  const auto base_of = [&](const PageWork& page) -> const ChunkEntry* {
    const auto found = chunks.find({page.chunk->shard(), page.chunk->role()});
    if (found == chunks.end() || page.page >= found->second->page_hash_size()) return nullptr;
    return found->second->page_hash(page.page) == page.chunk->page_hash(page.page) ? found->second : nullptr;
  };
  std::vector<uint64_t> of_use(static_cast<size_t>(base.packs_size()));
  for (const PageWork& page : *work) {
    const ChunkEntry* before = base_of(page);
    if (before != nullptr) of_use[before->pack(page.page)] += before->stored_bytes(page.page);
  }
  std::vector<bool> usable;
  for (int i = 0; i < base.packs_size(); ++i) {
    const PackEntry& pack = base.packs(i);
    const absl::StatusOr<Generation> generation = GenerationOfName(pack.name());
    const bool wanted =
        generation.ok() && !(*generation < oldest) && of_use[static_cast<size_t>(i)] * 2 >= pack.bytes();
    usable.push_back(wanted && store->Size(pack.name()) == absl::StatusOr<uint64_t>(pack.bytes()));
  }
  std::map<uint32_t, uint32_t> packs;
  for (PageWork& page : *work) {
    const ChunkEntry* before = base_of(page);
    if (before == nullptr) continue;
    const uint32_t pack = before->pack(page.page);
    const PackEntry& entry = base.packs(static_cast<int>(pack));
    if (!usable[pack]) continue;
    const auto [it, added] = packs.try_emplace(pack, 0);
    if (added) {
      it->second = table->Add(entry.name());
      table->Finish(it->second, entry.bytes());
    }
    page.chunk->set_pack(page.page, it->second);
    page.chunk->set_offset(page.page, before->offset(page.page));
    page.chunk->set_stored_bytes(page.page, before->stored_bytes(page.page));
    page.write = false;
  }
}

// Refers to where the snapshot before has it, unless that pack is of a generation before `oldest` or is not
// as long as it was; `base` may be null.
absl::Status WriteCarried(const CarriedTensors& carried, const Manifest* base, Generation oldest,
                          ObjectStore* store, PackTable* table, Manifest* manifest) {
  CarriedEntry* entry = manifest->mutable_carried();
  entry->set_bytes(carried.file().size());
  entry->set_hash(carried.hash());
  for (const auto& [name, tensor] : carried.aliases()) {
    AliasEntry* alias = entry->add_aliases();
    alias->set_name(name);
    alias->set_tensor(tensor);
  }
  if (base != nullptr && base->carried().hash() == carried.hash()) {
    const PackEntry& pack = base->packs(static_cast<int>(base->carried().pack()));
    const absl::StatusOr<Generation> generation = GenerationOfName(pack.name());
    if (generation.ok() && !(*generation < oldest) &&
        store->Size(pack.name()) == absl::StatusOr<uint64_t>(pack.bytes())) {
      entry->set_pack(table->Add(pack.name()));
      table->Finish(entry->pack(), pack.bytes());
      entry->set_offset(base->carried().offset());
      return absl::OkStatus();
    }
  }
  PackSequence packs(store, table);
  RECON_ASSIGN_OR_RETURN(const uint64_t offset, packs.Append(carried.file()));
  entry->set_pack(packs.pack());
  entry->set_offset(offset);
  return packs.Close();
}

}  // namespace

void SnapshotWriter::NoteRestored(const Manifest& manifest) {
  base_ = manifest;
  restored_ = Generation(manifest.generation());
  published_ = 0;
}

absl::Status SnapshotWriter::WritePacks(const ParamLayout& layout, std::vector<ShardCut> shards,
                                        uint32_t server, Pace pace, Manifest* manifest) {
  const bool background = pace == Pace::kBackground;
  const int threads = background ? 1 : options_.threads;
  const size_t batch_pages = background ? kBackgroundBatchPages : kBatchPages;
  std::vector<PageWork> work = ListPages(layout, std::move(shards), manifest);
  std::atomic<size_t> next{0};
  RECON_RETURN_IF_ERROR(RunEncoders(threads, background, [&] {
    Pacer pacer(background, &hurry_);
    for (size_t i; (i = next.fetch_add(1)) < work.size();) {
      PageWork& page = work[i];
      if (i % batch_pages == 0) pacer.Rest();
      page.chunk->set_page_hash(page.page, Hash128(page.content.data(), page.size * sizeof(float)));
      page.non_finite = NonFiniteIn(page);
    }
    return absl::OkStatus();
  }));
  for (const PageWork& page : work) {
    page.chunk->set_non_finite_values(page.chunk->non_finite_values() + page.non_finite);
  }
  PackTable table(manifest, server, options_.shared || server != 0);
  const auto age = static_cast<uint64_t>(std::max(1, options_.keep.last / 2));
  const Generation oldest(manifest->generation() - std::min(age, manifest->generation()));
  if (base_) ReferToBase(*base_, oldest, store_, &work, &table);
  // Once for all servers of the job: the head's part has it.
  if (carried_ != nullptr && server == 0) {
    RECON_RETURN_IF_ERROR(
        WriteCarried(*carried_, base_ ? &*base_ : nullptr, oldest, store_, &table, manifest));
  }
  work.erase(std::remove_if(work.begin(), work.end(), [](const PageWork& page) { return !page.write; }),
             work.end());
  next = 0;
  const auto write = [&]() -> absl::Status {
    Pacer pacer(background, &hurry_);
    PageCodec codec;
    PackSequence packs(store_, &table);
    std::string bytes;
    std::vector<size_t> ends;
    for (size_t first; (first = next.fetch_add(batch_pages)) < work.size();) {
      const size_t last = std::min(first + batch_pages, work.size());
      bytes.clear();
      ends.clear();
      for (size_t i = first; i < last; ++i) {
        const PageWork& page = work[i];
        codec.Encode({page.chunk->shard(), page.chunk->role(), static_cast<uint32_t>(page.page),
                      manifest->generation()},
                     page.values(), options_.zstd_level, &bytes);
        ends.push_back(bytes.size());
        work[i].content = PageRef();
      }
      RECON_ASSIGN_OR_RETURN(const uint64_t offset, packs.Append(bytes));
      for (size_t i = first; i < last; ++i) {
        const size_t begin = i == first ? 0 : ends[i - first - 1];
        const PageWork& page = work[i];
        page.chunk->set_pack(page.page, packs.pack());
        page.chunk->set_offset(page.page, offset + begin);
        page.chunk->set_stored_bytes(page.page, static_cast<uint32_t>(ends[i - first] - begin));
      }
      pacer.Rest();
      if (packs.full()) RECON_RETURN_IF_ERROR(packs.Close());
    }
    return packs.Close();
  };
  return RunEncoders(threads, background, [&] {
    absl::Status written = write();
    if (!written.ok()) next = work.size();  // The others need not go on.
    return written;
  });
}

absl::StatusOr<Manifest> SnapshotWriter::Write(const ParamLayout& layout, std::vector<ShardCut> shards,
                                               const Description& description, Pace pace) {
  RECON_ASSIGN_OR_RETURN(const Generation generation, NextGeneration());
  absl::StatusOr<Manifest> part = WritePart(layout, std::move(shards), generation, /*server=*/0, pace);
  if (part.ok()) part = Publish(layout, description, generation, {*std::move(part)});
  if (!part.ok()) RemoveUnpublished();
  return part;
}

absl::StatusOr<Generation> SnapshotWriter::NextGeneration() {
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, SnapshotReader(store_).List());
  // Never a number that was used before: its packs may be referred to.
  const uint64_t listed = generations.empty() ? 0 : generations.back().value();
  return Generation(std::max(listed, base_ ? base_->generation() : 0) + 1);
}

absl::StatusOr<Manifest> SnapshotWriter::WritePart(const ParamLayout& layout, std::vector<ShardCut> shards,
                                                   Generation generation, uint32_t server, Pace pace) {
  if (base_) {
    RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, SnapshotReader(store_).List());
    if (std::find(generations.begin(), generations.end(), Generation(base_->generation())) ==
        generations.end()) {
      base_.reset();
    }
  }
  Manifest part;
  part.set_generation(generation.value());
  const absl::Status written = WritePacks(layout, std::move(shards), server, pace, &part);
  for (const PackEntry& pack : part.packs()) {
    if (GenerationOfName(pack.name()).value_or(Generation(0)) == generation) unpublished_.insert(pack.name());
  }
  RECON_RETURN_IF_ERROR(written);
  return part;
}

absl::StatusOr<Manifest> SnapshotWriter::Publish(const ParamLayout& layout, const Description& description,
                                                 Generation generation, std::vector<Manifest> parts,
                                                 std::vector<ServerPart> servers) {
  RECON_ASSIGN_OR_RETURN(Manifest manifest, JoinParts(layout, std::move(parts)));
  manifest.set_generation(generation.value());
  *manifest.mutable_model() = layout.model();
  manifest.set_optimizer(description.optimizer);
  manifest.set_state_planes(static_cast<uint32_t>(description.state_planes));
  manifest.set_sequence(description.sequence);
  manifest.set_log_from(description.log_from);
  manifest.set_cluster_epoch(description.cluster_epoch);
  manifest.set_job_id(description.job_id);
  manifest.set_history(description.history);
  if (description.control) *manifest.mutable_control() = *description.control;
  manifest.set_frontier_step(description.frontier_step);
  manifest.set_created_unix_ms(description.created_unix_ms);
  manifest.set_reason(description.reason);
  for (ServerPart& server : servers) *manifest.add_servers() = std::move(server);
  uint64_t non_finite = 0;
  for (const ChunkEntry& chunk : manifest.chunks()) non_finite += chunk.non_finite_values();
  manifest.set_non_finite_values(non_finite);
  RECON_FAULT_POINT("publish.before_manifest");
  manifest.set_state_root(ComputeStateRoot(manifest));
  const std::string bytes = EncodeManifest(manifest);
  if (bytes.size() > limits::kManifestBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("manifest of ", bytes.size(), " bytes, allowed are ", limits::kManifestBytesMax));
  }
  // What other servers have sent is checked as whoever reads it will.
  if (manifest.servers_size() > 0) RECON_RETURN_IF_ERROR(DecodeManifest(bytes).status());
  RECON_RETURN_IF_ERROR(store_->PutIfAbsent(ManifestName(generation), bytes));
  NotePublished(manifest);
  return manifest;
}

void SnapshotWriter::NotePublished(const Manifest& manifest) {
  base_ = manifest;
  ++published_;
  unpublished_.clear();
}

// By what is published, not by what was tried: a manifest may be there though publishing it failed.
void SnapshotWriter::RemoveUnpublished() {
  const absl::Status removed = RemoveOrphanPacks();
  if (!removed.ok()) LogWarn("what is left of a snapshot: {}", removed.message());
}

absl::StatusOr<std::vector<Generation>> SnapshotWriter::Expired() {
  // With the snapshot that was restored there are two at least, should the newest be damaged.
  constexpr int kEnough = 2;
  const SnapshotReader reader(store_);
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  RECON_ASSIGN_OR_RETURN(const std::set<Generation> held, Held());
  std::vector<RetentionCandidate> candidates;
  for (const Generation generation : generations) {
    RetentionCandidate candidate;
    candidate.generation = generation;
    candidate.pinned = held.count(generation) > 0 || (restored_ == generation && published_ < kEnough);
    const absl::StatusOr<Manifest> manifest = reader.ReadManifest(generation);
    // What could not be read this time may be good: then nothing is decided.
    if (!manifest.ok() && !absl::IsDataLoss(manifest.status())) return manifest.status();
    candidate.readable = manifest.ok();
    if (manifest.ok()) {
      candidate.created_unix_ms = manifest->created_unix_ms();
      candidate.finite = manifest->has_non_finite_values() && manifest->non_finite_values() == 0;
      candidate.evaluation = LastEvaluation(*manifest);
    }
    candidates.push_back(candidate);
  }
  return ToDelete(candidates, options_.keep);
}

absl::StatusOr<std::set<Generation>> SnapshotWriter::Held() {
  RECON_ASSIGN_OR_RETURN(std::set<Generation> held, SnapshotReader(store_).Pinned());
  RECON_ASSIGN_OR_RETURN(const std::set<Generation> leased, LeasedGenerations(store_));
  held.insert(leased.begin(), leased.end());
  return held;
}

absl::Status SnapshotWriter::CollectGarbage() {
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> expired, Expired());
  RECON_RETURN_IF_ERROR(RemoveMarksBut(expired));
  for (const Generation generation : expired) {
    // Whoever comes from here on to read or pin it sees the mark; whoever came before is seen by us.
    const absl::Status marked = store_->PutIfAbsent(RetiredName(generation), "");
    // A full disk must not keep us from making room: a reader that comes just now may fail.
    if (!marked.ok() && !absl::IsAlreadyExists(marked) && !absl::IsResourceExhausted(marked)) return marked;
    RECON_FAULT_POINT("collect.after_mark");
    RECON_ASSIGN_OR_RETURN(const std::set<Generation> held, Held());
    if (held.count(generation) == 0) {
      RECON_RETURN_IF_ERROR(store_->Delete(ManifestName(generation)));
      RECON_FAULT_POINT("collect.after_manifest");
    }
    RECON_RETURN_IF_ERROR(store_->Delete(RetiredName(generation)));
  }
  const absl::Status removed = RemoveOrphanPacks();
  RemoveExpiredLeases(store_);
  return removed;
}

// A collector that was killed left them; the rules may be others now.
absl::Status SnapshotWriter::RemoveMarksBut(const std::vector<Generation>& expired) {
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> marks, store_->List("retired/"));
  for (const std::string& mark : marks) {
    const absl::StatusOr<Generation> generation = GenerationOfName(mark);
    if (!generation.ok() || std::find(expired.begin(), expired.end(), *generation) != expired.end()) continue;
    RECON_RETURN_IF_ERROR(store_->Delete(mark));
  }
  return absl::OkStatus();
}

absl::Status SnapshotWriter::RemoveOrphanPacks() {
  const SnapshotReader reader(store_);
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> packs, store_->List("packs/"));
  std::set<std::string> named;
  if (base_) {
    for (const PackEntry& pack : base_->packs()) named.insert(pack.name());
    const Generation ours(base_->generation());
    if (std::find(generations.begin(), generations.end(), ours) == generations.end()) {
      return absl::UnavailableError(absl::StrCat(store_->Describe(), " does not list snapshot ", ours.value(),
                                                 ": nothing is removed by such a list"));
    }
  }
  Generation newest_unreadable;
  for (const Generation generation : generations) {
    const absl::StatusOr<Manifest> manifest = reader.ReadManifest(generation);
    if (!manifest.ok()) {
      if (!absl::IsDataLoss(manifest.status())) return manifest.status();
      newest_unreadable = generation;
      continue;
    }
    for (const PackEntry& pack : manifest->packs()) named.insert(pack.name());
  }
  for (const std::string& pack : packs) {
    const auto generation = GenerationOfName(pack);
    if (!generation.ok()) continue;  // Not ours: never delete what we did not write.
    // What a damaged manifest names is not known, but that it is not newer than itself.
    if (named.count(pack) > 0 || !(newest_unreadable < *generation)) continue;
    const bool may_be_others = options_.shared && (!base_ || Generation(base_->generation()) < *generation);
    if (may_be_others && unpublished_.count(pack) == 0) continue;
    RECON_RETURN_IF_ERROR(store_->Delete(pack));
  }
  return absl::OkStatus();
}

}  // namespace recon
