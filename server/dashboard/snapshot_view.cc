#include "server/dashboard/snapshot_view.h"

#include <sys/resource.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/snapshot/carried_tensors.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/reader_lease.h"
#include "nlohmann/json.hpp"

namespace recon {
namespace {

constexpr absl::Duration kLookAgain = absl::Seconds(10);
constexpr int kPriority = 15;  // Training comes first.

}  // namespace

SnapshotView::SnapshotView(std::shared_ptr<ObjectStore> store)
    : store_(std::move(store)), reader_(store_.get()), lane_("snapshot view") {
  lane_.Post([] { (void)setpriority(PRIO_PROCESS, 0, kPriority); });  // On Linux it is the thread's.
}

SnapshotView::~SnapshotView() { GiveUp(); }

std::string SnapshotView::Json(uint64_t newest, absl::Time now) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  MutexLock lock(&mu_);
  if (!looking_ && (newest != newest_ || now - looked_at_ >= kLookAgain)) {
    looking_ = true;
    newest_ = newest;
    looked_at_ = now;
    lane_.Post([this] { Look(); });
  }
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (!entry->second.error.empty()) {
      list.push_back({{"generation", entry->first.value()},
                      {"pinned", entry->second.pinned},
                      {"error", entry->second.error}});
      continue;
    }
    const Manifest& manifest = entry->second.summary;
    nlohmann::ordered_json non_finite;  // Null where nobody has looked.
    if (manifest.has_non_finite_values()) non_finite = manifest.non_finite_values();
    list.push_back({{"generation", manifest.generation()},
                    {"created_unix_ms", manifest.created_unix_ms()},
                    {"reason", manifest.reason()},
                    {"sequence", manifest.sequence()},
                    {"state_root", ToHex(manifest.state_root())},
                    {"raw_bytes", entry->second.raw_bytes},
                    {"stored_bytes", entry->second.stored_bytes},
                    {"non_finite_values", non_finite},
                    {"pinned", entry->second.pinned}});
  }
  nlohmann::ordered_json verify;
  if (verification_.generation != 0) {
    verify = {{"generation", verification_.generation},
              {"running", verification_.running},
              {"done", verification_.done},
              {"chunks", verification_.chunks},
              {"ok", !verification_.running && verification_.error.empty()},
              {"error", verification_.error}};
  }
  const nlohmann::ordered_json all = {
      {"loading", !looked_}, {"error", error_}, {"snapshots", list}, {"verify", verify}};
  return all.dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace);
}

absl::Status SnapshotView::Verify(uint64_t generation) {
  MutexLock lock(&mu_);
  if (verification_.running) {
    return absl::AlreadyExistsError(
        absl::StrCat("snapshot ", verification_.generation, " is being verified: one at a time"));
  }
  verification_ = Verification();
  verification_.generation = generation;
  verification_.running = true;
  lane_.Post([this, generation] {
    const absl::Status status = ReadBack(Generation(generation));
    MutexLock done(&mu_);
    verification_.running = false;
    verification_.error = std::string(status.message());
  });
  return absl::OkStatus();
}

absl::Status SnapshotView::ReadBack(Generation generation) {
  RECON_ASSIGN_OR_RETURN(const auto lease, ReaderLease::TakeIfWritable(store_.get(), generation));
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, reader_.ReadManifest(generation));
  RECON_RETURN_IF_ERROR(ReadCarried(store_.get(), manifest).status());
  for (int i = 0; i < manifest.chunks_size(); ++i) {
    if (stopping_.load()) return absl::CancelledError("the server stops");
    RECON_RETURN_IF_ERROR(reader_.ReadChunk(manifest, i).status());
    MutexLock lock(&mu_);
    verification_.done = i + 1;
    verification_.chunks = manifest.chunks_size();
  }
  return absl::OkStatus();
}

void SnapshotView::Look() {
  absl::StatusOr<std::map<Generation, Entry>> entries = ReadEntries();
  MutexLock lock(&mu_);
  looking_ = false;
  looked_ = true;
  error_ = std::string(entries.status().message());
  if (entries.ok()) entries_ = *std::move(entries);
}

absl::StatusOr<std::map<Generation, SnapshotView::Entry>> SnapshotView::ReadEntries() {
  RECON_ASSIGN_OR_RETURN(std::vector<Generation> generations, reader_.List());
  RECON_ASSIGN_OR_RETURN(const std::set<Generation> pinned, reader_.Pinned());
  if (generations.size() > kShownMax) generations.erase(generations.begin(), generations.end() - kShownMax);
  std::map<Generation, Entry> known, entries;
  {
    MutexLock lock(&mu_);
    known = entries_;
  }
  for (const Generation generation : generations) {
    if (stopping_.load()) break;
    const auto found = known.find(generation);
    // Somebody may have mended one that could not be read.
    const bool whole = found != known.end() && found->second.error.empty();
    absl::StatusOr<Entry> entry = whole ? found->second : ReadEntry(generation);
    if (absl::IsNotFound(entry.status())) continue;  // Removed meanwhile.
    RECON_RETURN_IF_ERROR(entry.status());
    entry->pinned = pinned.count(generation) > 0;
    entries[generation] = *std::move(entry);
  }
  return entries;
}

absl::StatusOr<SnapshotView::Entry> SnapshotView::ReadEntry(Generation generation) const {
  const absl::StatusOr<Manifest> manifest = reader_.ReadManifest(generation);
  if (absl::IsNotFound(manifest.status()) || absl::IsUnavailable(manifest.status())) return manifest.status();
  Entry entry;
  if (!manifest.ok()) {
    entry.error = std::string(manifest.status().message());
    return entry;
  }
  const SnapshotSizes sizes = SizesOf(*manifest);
  entry.raw_bytes = sizes.raw;
  entry.stored_bytes = sizes.stored;
  entry.summary.set_generation(manifest->generation());
  entry.summary.set_created_unix_ms(manifest->created_unix_ms());
  entry.summary.set_reason(manifest->reason());
  entry.summary.set_sequence(manifest->sequence());
  entry.summary.set_state_root(manifest->state_root());
  if (manifest->has_non_finite_values()) entry.summary.set_non_finite_values(manifest->non_finite_values());
  return entry;
}

}  // namespace recon
