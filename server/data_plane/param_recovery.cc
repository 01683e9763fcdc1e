// How a ParamServer's state is cut for a snapshot, restored from one, and brought up to date by the log.

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/retry_hint.h"
#include "common/base/status_macros.h"
#include "common/snapshot/manifest.h"
#include "server/data_plane/param_operation.h"
#include "server/data_plane/param_server.h"

namespace recon {
namespace {

// For each thread that applies: most wait for the disk while others decode.
constexpr int kReadersPerThread = 6;
// Whoever waits for a server sees how far it is.
constexpr absl::Duration kProgressInterval = absl::Seconds(1);
// Frames being replayed hold their segments of the log.
constexpr uint64_t kReplayBytesInFlight = uint64_t{128} << 20;

std::string SaidOptimizer(const StateOwner& owner) {
  return absl::StrCat(owner.outer ? "the outer optimizer is " : "--optimizer is ", OptimizerName(owner.kind));
}

}  // namespace

absl::Status ParamServer::Restore(const SnapshotReader& reader, const Manifest& manifest) {
  const int planes = static_cast<int>(manifest.state_planes());
  bool ours = planes == state_planes();
  if (ours && planes > 0) {
    RECON_ASSIGN_OR_RETURN(const StateOwner owner, ParseStateOwner(manifest.optimizer()));
    ours = Compatible(owner, state());
  }
  if (!ours) {
    return absl::FailedPreconditionError(
        absl::StrCat("the snapshot holds the state of ", manifest.optimizer(), ", ", SaidOptimizer(state())));
  }
  const auto restore_shard = [&](uint32_t shard) -> absl::Status {
    ShardCut cut = shards_[shard]->Cut();
    RECON_ASSIGN_OR_RETURN(std::vector<std::vector<PageRef>> chunks,
                           reader.ReadChunks(manifest, static_cast<int>(shard) * (planes + 1), planes + 1));
    std::move(chunks.begin(), chunks.end(), cut.pages.begin());
    const ShardEntry& entry = manifest.shards(static_cast<int>(shard));
    cut.version = entry.version();
    const Ledger& ledger = LedgerOf(manifest, shard);
    cut.ledger.assign(ledger.entries().begin(), ledger.entries().end());
    cut.first_open_step = std::max(manifest.frontier_step(), entry.first_open_step());
    shards_[shard]->Restore(std::move(cut));
    RaiseTo(shards_[shard]->version(), &updates_);
    return absl::OkStatus();
  };
  RECON_RETURN_IF_ERROR(
      ForEachOwnedShard(absl::StrCat("restoring snapshot ", manifest.generation()), restore_shard));
  MutexLock lock(&mu_);
  sequence_ = manifest.sequence();
  gate_ = StalenessGate(rules_->bound, manifest.frontier_step());
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    first_open_[i] =
        std::max(manifest.frontier_step(), manifest.shards(static_cast<int>(i)).first_open_step());
  }
  has_values_ = true;
  return absl::OkStatus();
}

absl::Status ParamServer::LoadInitialValues(
    const std::function<absl::StatusOr<std::vector<PageRef>>(uint32_t shard)>& pages_of) {
  const auto load_shard = [&](uint32_t shard) -> absl::Status {
    RECON_ASSIGN_OR_RETURN(std::vector<PageRef> pages, pages_of(shard));
    Notification loaded;
    lanes_.Post(LaneKey(shard), [&] {
      ShardCut cut = shards_[shard]->Cut();
      cut.pages[0] = std::move(pages);
      shards_[shard]->Restore(std::move(cut));
      loaded.Notify();
    });
    loaded.WaitForNotification();
    return absl::OkStatus();
  };
  RECON_RETURN_IF_ERROR(ForEachOwnedShard("loading initial parameters", load_shard));
  MutexLock lock(&mu_);
  has_values_ = true;
  return absl::OkStatus();
}

absl::Status ParamServer::ForEachOwnedShard(const std::string& what,
                                            const std::function<absl::Status(uint32_t shard)>& load) {
  std::vector<absl::Status> statuses(shards_.size());
  Mutex mu;
  size_t left = owned_.size();
  LanePool readers("restore", kReadersPerThread * options_.apply_threads);
  for (uint32_t at = 0; at < owned_.size(); ++at) {
    readers.Post(at, [&, i = owned_[at]] {
      statuses[i] = load(i);
      MutexLock lock(&mu);
      --left;
    });
  }
  const auto wait_a_while = [&] {
    MutexLock lock(&mu);
    if (mu.AwaitFor(kProgressInterval, [&] { return left == 0; })) return true;
    const size_t done = owned_.size() - left;
    LogInfo("{}: {} of {} shards, {} %", what, done, owned_.size(), 100 * done / owned_.size());
    return false;
  };
  while (!wait_a_while()) {
  }
  for (const absl::Status& status : statuses) RECON_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

void ParamServer::Cut(absl::AnyInvocable<void(StateCut)> done, std::function<void()> in_order) {
  struct Collector {
    StateCut cut;
    std::atomic<size_t> left;
    absl::AnyInvocable<void(StateCut)> done;
  };
  auto collector = std::make_shared<Collector>();
  collector->done = std::move(done);
  auto cut = [this, collector, in_order = std::move(in_order)] {
    MutexLock lock(&mu_);
    if (in_order) in_order();
    collector->left = owned_.size();
    collector->cut.shards.resize(shards_.size());
    collector->cut.sequence = sequence_;
    collector->cut.frontier_step = FrontierInLog();
    collector->cut.log_from = sequence_ + 1;
    open_steps_.erase(open_steps_.begin(), open_steps_.lower_bound(FrontierInLog()));
    for (const auto& [step, first] : open_steps_) {
      // Without a log nothing can be asked of it.
      if (log_ != nullptr) collector->cut.log_from = std::min(collector->cut.log_from, first);
    }
    collector->cut.replay_seconds = replay_seconds();
    for (const uint32_t i : owned_) {
      collector->cut.pages_of_versions +=
          uint64_t{layout_->shards()[i].pages()} * rules_->correction.versions;
    }
    if (owned_.empty()) {  // More servers than shards.
      lanes_.Post(0, [collector] { collector->done(std::move(collector->cut)); });
    }
    for (const uint32_t i : owned_) {
      lanes_.Post(LaneKey(i), [this, i, collector] {
        if (log_ != nullptr) shards_[i]->HideVersions();
        collector->cut.shards[i] = shards_[i]->Cut();
        if (collector->left.fetch_sub(1, std::memory_order_acq_rel) == 1)
          collector->done(std::move(collector->cut));
      });
    }
  };
  // In the order of the log, and with nothing in it that is not on its way to the disk.
  if (log_ == nullptr) return cut();
  MutexLock lock(&mu_);
  if (rules_->correction.versions == 0) return log_->Barrier([cut](const absl::Status&) { cut(); });
  // Whoever applies the records again, from an earlier cut, has to forget here, too.
  log_->Append(LogRecordKind::kFreeze, FreezeRecord(), [this, cut](const absl::Status& written) {
    if (written.ok()) {
      MutexLock applied(&mu_);
      ++sequence_;
    }
    cut();
  });
}

void ParamServer::NoteSnapshot(uint64_t log_from) {
  uint64_t needed;
  {
    MutexLock lock(&mu_);
    has_snapshot_ = true;
    // The snapshot before stays usable, too.
    needed = std::exchange(log_from_, log_from);
    if (log_ != nullptr) log_bytes_at_snapshot_ = log_->bytes_written();
  }
  // Where room is short it does not.
  TrimLog(log_full() ? log_from : needed);
}

void ParamServer::TrimLogToNewest() {
  uint64_t needed;
  {
    MutexLock lock(&mu_);
    needed = log_from_;
  }
  TrimLog(needed);
}

void ParamServer::TrimLog(uint64_t first_needed) {
  if (log_ == nullptr) return;
  const absl::Status trimmed = log_->Trim(first_needed);
  if (!trimmed.ok()) LogWarn("push log: {}", trimmed.message());
}

bool ParamServer::log_wants_snapshot() const {
  if (log_ == nullptr) return false;
  if (log_->full()) return true;
  MutexLock lock(&mu_);
  return log_->bytes_written() - log_bytes_at_snapshot_ > log_->budget_bytes() / 4;
}

absl::Status ParamServer::CheckLogRoom() const {
  if (!log_full()) return absl::OkStatus();
  return WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrCat("the push log has ", log_->disk_bytes(),
                                                " bytes, its budget is ", log_->budget_bytes(),
                                                log_->short_of_room() ? ", and its disk is nearly full" : "",
                                                ": pushes wait for a snapshot to make room")),
      limits::kOverloadRetry);
}

void ParamServer::AwaitSnapshot() {
  MutexLock lock(&mu_);
  has_snapshot_ = false;
}

bool ParamServer::awaits_snapshot() const {
  MutexLock lock(&mu_);
  return log_ != nullptr && has_values_ && !has_snapshot_;
}

void ParamServer::SetLog(std::unique_ptr<PushLog> log) { log_ = std::move(log); }

absl::Status ParamServer::RecordControl(const std::vector<std::string>& records,
                                        const std::function<void(uint64_t sequence)>& written) {
  absl::Status status;
  size_t left = records.size();
  Notification recorded;
  if (left == 0) return status;
  for (const std::string& record : records) {
    if (log_ == nullptr) {
      written(sequence());
      continue;
    }
    log_->Append(LogRecordKind::kControl, ByteChain::FromString(record), [&](const absl::Status& done) {
      if (done.ok()) {
        uint64_t number;
        {
          MutexLock lock(&mu_);
          number = ++sequence_;
        }
        written(number);
      } else {
        status = LogFailed(done);
      }
      if (--left == 0) recorded.Notify();
    });
  }
  if (log_ != nullptr) recorded.WaitForNotification();
  return status;
}

absl::Status ParamServer::log_status() const { return log_ == nullptr ? absl::OkStatus() : log_->status(); }

double ParamServer::replay_seconds() const {
  const double threads =
      std::max<double>(1, std::min<double>(options_.apply_threads, static_cast<double>(owned_.size())));
  const double bytes = log_ == nullptr ? 0 : static_cast<double>(log_->bytes_written());
  return static_cast<double>(apply_nanos_.load()) / 1e9 / threads + bytes / limits::kLogReadBytesPerSecond;
}

void ParamServer::BeginReplay(const ApplyRules& rules) {
  replay_rules_.push_back(rules);
  SetShardRules(*layout(), &replay_rules_.back());
}

void ParamServer::SetShardRules(const ParamLayout& layout, const ApplyRules* rules) {
  for (const uint32_t i : owned_) {
    const GroupPolicy policy = PolicyFor(*rules, layout, i);
    lanes_.Post(LaneKey(i), [this, i, rules, policy] { shards_[i]->SetRules(rules, policy); });
  }
}

namespace {

// Another version of the program wrote it: no damage, and nothing that could be left out.
absl::Status CheckFrameVersion(uint64_t sequence, const ByteChain& payload) {
  FrameHeader header;
  if (payload.size() < kFrameHeaderBytes) return absl::OkStatus();  // DecodeFrame() says what is wrong.
  payload.CopyTo(&header, kFrameHeaderBytes);
  if (header.magic != kFrameMagic || header.version == kFrameVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("record ", sequence, " of the push log has a frame of version ", header.version,
                   ", this program reads ", kFrameVersion,
                   ": drain the job with the program that wrote it, then start this one"));
}

}  // namespace

absl::Status ParamServer::ReplayFrame(uint64_t sequence, const ByteChain& payload) {
  const ApplyRules& rules = replay_rules_.back();
  if (const StateOwner owner = StateOf(rules); owner.planes() > 0 && !Compatible(owner, state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the push log has the state of ", StateName(owner), ", ", SaidOptimizer(state())));
  }
  auto op = std::make_shared<Operation>();
  const auto damaged = [sequence](const absl::Status& status) {
    return absl::DataLossError(absl::StrCat("record ", sequence, ": ", status.message()));
  };
  RECON_RETURN_IF_ERROR(CheckFrameVersion(sequence, payload));
  absl::StatusOr<Frame> frame = DecodeFrame(payload);
  if (!frame.ok()) return damaged(frame.status());
  op->frame = *std::move(frame);
  op->kind = static_cast<FrameKind>(op->frame.header.kind);
  if (op->kind != FrameKind::kPush && op->kind != FrameKind::kPushPull) {
    return absl::DataLossError(absl::StrCat("record ", sequence, ": frame of kind ", op->frame.header.kind));
  }
  op->worker = WorkerId(op->frame.header.worker);
  op->incarnation = Incarnation(op->frame.header.incarnation);
  op->rules = &rules;
  op->left_out =
      left_out_.count({op->frame.header.worker, op->frame.header.incarnation, op->frame.header.step}) > 0;
  op->bytes = payload.size();
  op->outcomes.resize(op->frame.parts.size(), Shard::Outcome::kTaken);
  for (size_t i = 0; i < op->frame.parts.size(); ++i) {
    const PartHeader& part = op->frame.parts[i];
    const absl::Status checked =
        CheckPayload(static_cast<CodecId>(part.codec), part.count, op->frame.payloads[i]);
    if (!checked.ok()) return damaged(checked);
  }
  MutexLock lock(&mu_);
  if (const absl::Status checked = CheckParts(*op); !checked.ok()) return damaged(checked);
  // Before the cut only contributions to steps that were open then are of use.
  if (sequence <= sequence_ && rules.bound != 0) return absl::OkStatus();
  sequence_ = std::max(sequence_, sequence);
  const auto open = [&](const PartHeader& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return op->frame.header.step >= first_open_[part.shard];
  };
  if (rules_->bound == 0 && std::any_of(op->frame.parts.begin(), op->frame.parts.end(), open)) {
    open_steps_.try_emplace(op->frame.header.step, sequence);
  }
  mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return bytes_in_flight_ < kReplayBytesInFlight; });
  ++operations_;
  bytes_in_flight_ += op->bytes;
  OnLanes(op, &ParamServer::ApplyPart, &ParamServer::Replayed, &apply_nanos_);
  return absl::OkStatus();
}

void ParamServer::Replayed(const OperationPtr& op) {
  MutexLock lock(&mu_);
  --operations_;
  bytes_in_flight_ -= op->bytes;
}

absl::Status ParamServer::ReplayClosing(uint64_t sequence, const StepClosing& closing) {
  MutexLock lock(&mu_);
  if (!closing.shards.empty() && closing.shards.back() >= shards_.size()) {
    return absl::DataLossError(absl::StrCat("record ", sequence, ": closing of shard ", closing.shards.back(),
                                            ", the model has ", shards_.size()));
  }
  if (sequence <= sequence_) return absl::OkStatus();
  sequence_ = sequence;
  for (const uint32_t shard : closing.shards) {
    first_open_[shard] = std::max(first_open_[shard], closing.step + 1);
  }
  TellClosing(closing);
  PostClosing(closing);
  return absl::OkStatus();
}

void ParamServer::ReplayFreeze(uint64_t sequence) {
  MutexLock lock(&mu_);
  if (sequence <= sequence_) return;
  sequence_ = sequence;
  for (const uint32_t i : owned_) lanes_.Post(LaneKey(i), [this, i] { shards_[i]->HideVersions(); });
}

void ParamServer::ReplayControl(uint64_t sequence) {
  MutexLock lock(&mu_);
  sequence_ = std::max(sequence_, sequence);
}

void ParamServer::LeaveOut(LoggedPushes pushes) { left_out_ = std::move(pushes); }

void ParamServer::BeginHistory(uint64_t sequence, uint64_t first_step) {
  left_out_.clear();
  MutexLock lock(&mu_);
  sequence_ = std::max(sequence_, sequence);
  open_steps_.clear();
  // Asynchronous workers have steps of their own.
  if (rules_->bound >= 0) {
    first_step = std::max(first_step, FirstStepNobodyHasBegun());
    gate_ = StalenessGate(rules_->bound, first_step);
    std::fill(first_open_.begin(), first_open_.end(), first_step);
  }
  for (const uint32_t i : owned_) {
    lanes_.Post(LaneKey(i), [this, i, first_step, closes = rules_->bound >= 0 && first_step > 0] {
      shards_[i]->ForgetLeftOut();
      shards_[i]->DropContributions();
      if (closes) shards_[i]->CloseStep(first_step - 1, {});
    });
  }
}

void ParamServer::EndReplay() {
  MutexLock lock(&mu_);
  SetShardRules(*layout_, rules_);
  // Contributions to steps that are not closed stay: their workers send them again, and the closing of a step
  // may be on its way from the head.
  if (rules_->bound != 0) {
    for (const uint32_t i : owned_) lanes_.Post(LaneKey(i), [this, i] { shards_[i]->DropContributions(); });
  }
  mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return operations_ == 0; });
  // The head's is of all shards, another's of its own.
  uint64_t closed = UINT64_MAX;
  uint64_t begun = 0;
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    if (!head() && shards_[i] == nullptr) continue;
    closed = std::min(closed, first_open_[i]);
    begun = std::max(begun, first_open_[i]);
  }
  if (rules_->bound != 0 || closed == UINT64_MAX) return;
  // A step closes for no shard before those in front of it have for all; that a shard was closed last long
  // ago only says that few pushes have it.
  gate_.SkipTo(std::max(closed, begun - std::min<uint64_t>(begun, 1)));
}

}  // namespace recon
