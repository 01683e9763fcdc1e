#include "server/recovery/snapshot_service.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/human_bytes.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/snapshot/manifest.h"
#include "common/trace/recorder.h"
#include "common/trace/span_names.h"
#include "server/cluster/mixed_state.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/snapshot_memory.h"
#include "server/recovery/state_recovery.h"

namespace recon {

namespace {

// A snapshot that fails is not tried again before.
constexpr absl::Duration kBetweenTries = absl::Seconds(1);

// Whether the newest snapshot will do, if it has all that there is: another of the same state would push an
// older one out. Those that a restart takes have a new cluster epoch, too.
bool NewestWillDo(const std::string& reason) {
  return reason == "drain" || reason == "requested" || reason == "final";
}

// The tensor that a shard begins with; its group, too, has a name, but many tensors.
std::string NameOfShard(const ParamLayout& layout, uint32_t shard) {
  const uint64_t offset = layout.shards()[shard].offset;
  for (const TensorPlacement& tensor : layout.tensors()) {
    if (offset >= tensor.offset && offset < tensor.offset + tensor.size) return tensor.name;
  }
  return absl::StrCat("shard ", shard);
}

}  // namespace

SnapshotService::SnapshotService(const Options& options, ParamServer* params, ObjectStore* store,
                                 Metrics* metrics, Cluster* cluster)
    : options_(options),
      params_(params),
      cluster_(cluster),
      store_(store),
      published_(metrics->Counter("recon_server_snapshots_total", "Snapshots published")),
      failed_(metrics->Counter("recon_server_snapshot_failures_total", "Snapshots given up on")),
      seconds_(metrics->Gauge("recon_server_snapshot_seconds", "Time the last snapshot took")),
      generation_(metrics->Gauge("recon_server_snapshot_generation", "Newest published generation")),
      writer_(store, options.writer),
      last_periodic_(Now()),
      lane_("snapshot") {}

void SnapshotService::Take(const std::string& reason, Done done, SnapshotWriter::Pace pace) {
  const bool waits = pace == SnapshotWriter::Pace::kNow;
  if (waits) Hurry(1);
  lane_.Post([this, reason, pace, waits, done = std::move(done)]() mutable {
    NoteUnderWay(Now());
    const absl::StatusOr<SnapshotReply> reply = TakeNow(reason, pace);
    NoteUnderWay(absl::InfiniteFuture());
    if (!reply.ok()) {
      failed_.Increment();
      LogError("snapshot ({}) failed, the one before stays: {}", reason, reply.status().message());
      MutexLock lock(&mu_);
      status_.set_failed(status_.failed() + 1);
      status_.set_last_error(std::string(reply.status().message()));
    }
    if (waits) Hurry(-1);
    done(reply);
  });
}

void SnapshotService::NoteUnderWay(absl::Time since) {
  MutexLock lock(&mu_);
  under_way_since_ = since;
}

void SnapshotService::Hurry(int change) {
  writer_.Hurry(change);
  if (cluster_ != nullptr) cluster_->snapshot()->Hurry(change);
}

absl::StatusOr<SnapshotReply> SnapshotService::TakeNow(const std::string& reason, SnapshotWriter::Pace pace) {
  RECON_CHECK(lane_.IsCurrent());
  const auto layout = params_->layout();
  if (layout == nullptr || !params_->has_values()) {
    return absl::FailedPreconditionError("no snapshot: the server has no parameters yet");
  }
  const absl::Time start = Now();
  const trace::Span span(trace::kSnapshot);
  RECON_ASSIGN_OR_RETURN(const Generation next, writer_.NextGeneration());
  RECON_RETURN_IF_ERROR(CheckStillOurs(Generation(next.value() - 1)));
  if (const std::optional<SnapshotReply> same = NothingNew(reason)) return *same;
  // Not one that other servers may still be writing to.
  const Generation generation = std::max(next, Generation(last_tried_.value() + 1));
  last_tried_ = generation;
  std::function<void()> cut_others;
  if (cluster_ != nullptr) {
    RECON_RETURN_IF_ERROR(cluster_->snapshot()->Begin(generation.value()));
    cut_others = [this, background = pace == SnapshotWriter::Pace::kBackground] {
      cluster_->snapshot()->SendCut(background);
    };
  }
  StateCut cut;
  Notification ready;
  params_->Cut(
      [&](StateCut taken) {
        cut = std::move(taken);
        ready.Notify();
      },
      cut_others);
  ready.WaitForNotification();
  SnapshotWriter::Description description;
  description.optimizer = options_.optimizer;
  description.state_planes = params_->options().state->planes();
  description.sequence = cut.sequence;
  description.log_from = cut.log_from;
  description.cluster_epoch = params_->rules().cluster_epoch;
  description.job_id = options_.job_id;
  description.history = params_->rules().history;
  description.frontier_step = cut.frontier_step;
  description.created_unix_ms = absl::ToUnixMillis(WallNow());
  description.reason = reason;
  const absl::StatusOr<std::optional<Manifest>> written =
      WriteParts(*layout, std::move(cut), std::move(description), generation, pace);
  if (!written.ok() || !*written) {
    writer_.RemoveUnpublished();
    if (!written.ok()) return written.status();
    return ReplyOfNewest(reason);
  }
  const Manifest& manifest = **written;
  last_known_ = Generation(manifest.generation());
  const double seconds = absl::ToDoubleSeconds(Now() - start);
  NotePublished(manifest, seconds, cut.replay_seconds);
  const absl::Status collected = writer_.CollectGarbage();
  if (!collected.ok()) LogWarn("old snapshots: {}", collected.message());
  SnapshotReply reply;
  reply.set_generation(manifest.generation());
  reply.set_state_root(ToHex(manifest.state_root()));
  reply.set_stored_bytes(SizesOf(manifest).stored);
  reply.set_seconds(seconds);
  return reply;
}

// The newest snapshot, if it has all that there is. (Of several servers each knows only what it has itself.)
std::optional<SnapshotReply> SnapshotService::NothingNew(const std::string& reason) const {
  if (cluster_ != nullptr || !NewestWillDo(reason)) return std::nullopt;
  {
    MutexLock lock(&mu_);
    if (!last_sequence_ || *last_sequence_ != params_->position().sequence) return std::nullopt;
  }
  return ReplyOfNewest(reason);
}

SnapshotReply SnapshotService::ReplyOfNewest(const std::string& reason) const {
  const SnapshotStatus newest = status();
  LogInfo("snapshot {} has all that there is: none is taken ({})", newest.generation(), reason);
  SnapshotReply reply;
  reply.set_generation(newest.generation());
  reply.set_state_root(newest.state_root());
  reply.set_stored_bytes(newest.stored_bytes());
  return reply;
}

bool SnapshotService::NewestHas(const std::vector<ServerPart>& servers) {
  // Where versions are kept each cut is itself a record of each log: the next number is this cut's own, and a
  // push in between would make it the one after.
  const bool cut_is_record = params_->log()->on() && params_->rules().correction.versions > 0;
  const auto same = [cut_is_record](const ServerPart& now, const ServerPart& newest) {
    return now.id() == newest.id() && now.sequence() == newest.sequence() + (cut_is_record ? 1 : 0);
  };
  MutexLock lock(&mu_);
  if (servers.empty() ||
      !std::equal(servers.begin(), servers.end(), last_servers_.begin(), last_servers_.end(), same)) {
    return false;
  }
  last_servers_ = servers;
  last_sequence_ = servers.front().sequence();
  return true;
}

// Where no lock keeps a second server of the job away (one that was started in the place of this one, say,
// which then was not dead): the one with the newer cluster epoch has the job.
absl::Status SnapshotService::CheckStillOurs(Generation newest) {
  RECON_CHECK(lane_.IsCurrent());
  if (newest.value() == 0 || newest == last_known_) return absl::OkStatus();
  const absl::StatusOr<Manifest> manifest = SnapshotReader(store_).ReadManifest(newest);
  if (!manifest.ok()) {  // Damaged: passed over when this server started.
    const bool passed_over = absl::IsDataLoss(manifest.status()) || absl::IsNotFound(manifest.status());
    return passed_over ? absl::OkStatus() : manifest.status();
  }
  const bool other_job = manifest->job_id() != 0 && manifest->job_id() != options_.job_id;
  if (!other_job && manifest->cluster_epoch() <= params_->rules().cluster_epoch) return absl::OkStatus();
  const std::string whose =
      absl::StrCat("snapshot ", newest.value(), " of ", store_->Describe(), " is of job ",
                   absl::Hex(manifest->job_id()), ", cluster epoch ", manifest->cluster_epoch());
  MutexLock lock(&mu_);
  taken_over_ = absl::FailedPreconditionError(absl::StrCat(
      other_job ? "another job has the store now: " : "another server has taken the job over: ", whose,
      "; ours is ", absl::Hex(options_.job_id), ", epoch ", params_->rules().cluster_epoch));
  return taken_over_;
}

absl::StatusOr<std::optional<Manifest>> SnapshotService::WriteParts(const ParamLayout& layout, StateCut cut,
                                                                    SnapshotWriter::Description description,
                                                                    Generation generation,
                                                                    SnapshotWriter::Pace pace) {
  RECON_CHECK(lane_.IsCurrent());
  if (options_.control) {
    RECON_ASSIGN_OR_RETURN(const ControlState control, options_.control(cut.sequence));
    description.control = EncodeControl(control);
  }
  std::vector<Manifest> parts;
  {
    const SnapshotMemory bound(options_.memory, cut);
    RECON_ASSIGN_OR_RETURN(parts.emplace_back(), writer_.WritePart(layout, std::move(cut.shards), generation,
                                                                   params_->options().server, pace));
  }
  RECON_RETURN_IF_ERROR(CheckPacks(parts.back(), params_->options().server));
  std::vector<ServerPart> servers;
  if (cluster_ != nullptr) {
    ServerPart& head = servers.emplace_back();
    head.set_sequence(description.sequence);
    head.set_log_from(description.log_from);
    RECON_ASSIGN_OR_RETURN(std::vector<SnapshotPart> others, cluster_->snapshot()->Collect());
    for (SnapshotPart& other : others) {
      RECON_RETURN_IF_ERROR(CheckPacks(other.part(), other.server().id()));
      servers.push_back(other.server());
      parts.push_back(std::move(*other.mutable_part()));
    }
  }
  // Writing may have taken long.
  RECON_ASSIGN_OR_RETURN(const Generation next, writer_.NextGeneration());
  RECON_RETURN_IF_ERROR(CheckStillOurs(Generation(next.value() - 1)));
  if (params_->rules().optimizer.kind == OptimizerKind::kMean) {
    RECON_RETURN_IF_ERROR(CheckOneState(layout, parts));
  }
  if (cluster_ != nullptr) RECON_RETURN_IF_ERROR(cluster_->snapshot()->End());
  if (NewestWillDo(description.reason) && NewestHas(servers)) return std::nullopt;
  RECON_ASSIGN_OR_RETURN(Manifest manifest, writer_.Publish(layout, description, generation, std::move(parts),
                                                            std::move(servers)));
  if (cluster_ != nullptr) cluster_->snapshot()->NotePublished();
  return manifest;
}

// That we see what another server has written.
absl::Status SnapshotService::CheckPacks(const Manifest& part, uint64_t server) const {
  for (const PackEntry& pack : part.packs()) {
    const absl::StatusOr<uint64_t> size = store_->Size(pack.name());
    if (size.ok() && *size == pack.bytes()) continue;
    if (!size.ok() && !absl::IsNotFound(size.status())) return size.status();
    return absl::FailedPreconditionError(absl::StrCat(
        "server ", absl::Hex(server), " has written ", pack.name(), " with ", pack.bytes(), " bytes, but in ",
        store_->Describe(), " it ", size.ok() ? absl::StrCat("has ", *size) : "is not there",
        ": do all servers have the same --snapshot-dir, and does nobody else write there?"));
  }
  return absl::OkStatus();
}

void SnapshotService::NotePublished(const Manifest& manifest, double seconds, double replay_seconds) {
  published_.Increment();
  seconds_.Set(seconds);
  const SnapshotSizes sizes = SizesOf(manifest);
  LogInfo("snapshot {} published ({}): {} for {}, {} of them new, {:.2f} s, root {}", manifest.generation(),
          manifest.reason(), HumanBytes(sizes.stored), HumanBytes(sizes.raw), HumanBytes(sizes.own), seconds,
          ToHex(manifest.state_root()));
  if (manifest.non_finite_values() > 0) SayNonFinite(manifest);
  {
    MutexLock lock(&mu_);
    status_.set_published(status_.published() + 1);
    status_.set_seconds(seconds);
    replay_seconds_at_last_ = replay_seconds;
  }
  NoteNewest(manifest);
}

void SnapshotService::SayNonFinite(const Manifest& manifest) const {
  const auto chunk = std::find_if(manifest.chunks().begin(), manifest.chunks().end(),
                                  [](const ChunkEntry& entry) { return entry.non_finite_values() > 0; });
  const uint64_t last_finite = status().last_finite_generation();
  LogError("SNAPSHOT {} HAS {} VALUES THAT ARE NOT FINITE, the first in {}: {}", manifest.generation(),
           manifest.non_finite_values(), NameOfShard(*params_->layout(), chunk->shard()),
           last_finite == 0 ? "no finite one is known"
                            : absl::StrCat("snapshot ", last_finite, " stays, the last that has none"));
}

void SnapshotService::SetCarried(std::shared_ptr<const CarriedTensors> carried) {
  lane_.RunAndWait([&] { writer_.SetCarried(std::move(carried)); });
}

void SnapshotService::NoteRestored(const Manifest& manifest) {
  lane_.RunAndWait([&] {
    writer_.NoteRestored(manifest);
    last_known_ = Generation(manifest.generation());
  });
  if (cluster_ != nullptr) cluster_->snapshot()->NoteRestored(manifest);
  NoteNewest(manifest);
}

void SnapshotService::NoteNewest(const Manifest& manifest) {
  params_->log()->NoteSnapshot(FirstRecordFor(manifest));
  generation_.Set(static_cast<double>(manifest.generation()));
  MutexLock lock(&mu_);
  status_.set_generation(manifest.generation());
  status_.set_unix_ms(manifest.created_unix_ms());
  const SnapshotSizes sizes = SizesOf(manifest);
  status_.set_stored_bytes(sizes.stored);
  status_.set_raw_bytes(sizes.raw);
  status_.set_state_root(ToHex(manifest.state_root()));
  status_.clear_non_finite_values();
  if (manifest.has_non_finite_values()) status_.set_non_finite_values(manifest.non_finite_values());
  if (manifest.has_non_finite_values() && manifest.non_finite_values() == 0) {
    status_.set_last_finite_generation(manifest.generation());
  }
  last_sequence_ = manifest.sequence();
  last_servers_.assign(manifest.servers().begin(), manifest.servers().end());
}

void SnapshotService::Tick(absl::Time now) {
  bool due = false;
  bool log_is_long = false;
  bool only_trim = false;
  {
    MutexLock lock(&mu_);
    if (periodic_running_ || now < next_try_) return;
    only_trim = params_->position().sequence == last_sequence_ && params_->log()->full();
  }
  const ServersState others = cluster_ == nullptr ? ServersState() : cluster_->state();
  if (cluster_ != nullptr && !others.live) return;
  if (only_trim) params_->log()->TrimToNewest();  // Blocks on the disk.
  {
    MutexLock lock(&mu_);
    if (params_->position().sequence == last_sequence_ || !params_->has_values()) return;
    due = now - last_periodic_ >= options_.interval;
    const double replay_seconds =
        std::max(params_->position().replay_seconds - replay_seconds_at_last_, others.replay_seconds);
    log_is_long = params_->log()->wants_snapshot() || others.log_wants_snapshot;
    if (!due && !log_is_long && replay_seconds < absl::ToDoubleSeconds(options_.replay_target)) return;
    periodic_running_ = true;
    last_periodic_ = now;
    next_try_ = now + kBetweenTries;
  }
  const auto done = [this](const absl::StatusOr<SnapshotReply>& reply) {
    MutexLock lock(&mu_);
    RECON_CHECK(periodic_running_, "a periodic snapshot ends twice");
    periodic_running_ = false;
    // A log that fills faster gets the next one at once: pushes would wait for it.
    if (reply.ok()) next_try_ = absl::InfinitePast();
  };
  Take(due           ? "periodic"
       : log_is_long ? "log"
                     : "replay",
       done, params_->log()->full() ? SnapshotWriter::Pace::kNow : SnapshotWriter::Pace::kBackground);
}

void SnapshotService::RestoreState(uint64_t upload, absl::AnyInvocable<void(const absl::Status&)> done) {
  lane_.Post([this, upload, done = std::move(done)]() mutable {
    const uint64_t generation = status().generation();
    if (generation == 0) return done(absl::FailedPreconditionError("there is no snapshot"));
    if (cluster_ != nullptr) cluster_->workers_state()->Restore(generation, upload);
    done(RestoreWorkersState(params_, store_, Generation(generation), upload));
  });
}

void SnapshotService::Flush() {
  lane_.RunAndWait([] {});
}

absl::Status SnapshotService::taken_over() const {
  MutexLock lock(&mu_);
  return taken_over_;
}

SnapshotStatus SnapshotService::status() const {
  MutexLock lock(&mu_);
  SnapshotStatus status = status_;
  if (under_way_since_ != absl::InfiniteFuture())
    status.set_under_way_seconds(absl::ToDoubleSeconds(Now() - under_way_since_));
  return status;
}

}  // namespace recon
