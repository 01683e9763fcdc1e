// How a ParamServer's state is cut for a snapshot, restored from one, and brought up to date by the log.

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/param_operation.h"
#include "server/param_server.h"

namespace recon {
namespace {

// Of those that restore: most wait for the disk while others decode.
constexpr int kReadersALane = 4;
// Whoever waits for a server sees how far it is.
constexpr absl::Duration kProgressInterval = absl::Seconds(1);
// Frames being replayed hold their segments of the log.
constexpr uint64_t kReplayBytesInFlight = uint64_t{128} << 20;

}  // namespace

absl::Status ParamServer::Restore(const SnapshotReader& reader, const Manifest& manifest,
                                  bool parameters_only) {
  const int planes = static_cast<int>(manifest.state_planes());
  if (!parameters_only && planes != state_planes()) {
    return absl::FailedPreconditionError(absl::StrCat("the snapshot holds the state of ",
                                                      manifest.optimizer(), ", --optimizer is ",
                                                      OptimizerName(options_.rules.optimizer.kind)));
  }
  std::vector<absl::Status> statuses(shards_.size());
  Mutex mu;
  size_t left = shards_.size();
  const auto restore_shard = [&](uint32_t shard) -> absl::Status {
    ShardCut cut = shards_[shard]->Cut();
    for (int role = 0; role <= (parameters_only ? 0 : planes); ++role) {
      RECON_ASSIGN_OR_RETURN(cut.pages[role],
                             reader.ReadChunk(manifest, static_cast<int>(shard) * (planes + 1) + role));
    }
    if (!parameters_only) {
      const ShardEntry& entry = manifest.shards(static_cast<int>(shard));
      cut.version = entry.version();
      cut.ledger.assign(entry.ledger().begin(), entry.ledger().end());
    }
    shards_[shard]->Restore(std::move(cut), parameters_only ? 0 : manifest.frontier_step());
    return absl::OkStatus();
  };
  LanePool readers("restore", kReadersALane * options_.lanes);
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    readers.Post(i, [&, i] {
      statuses[i] = restore_shard(i);
      MutexLock lock(&mu);
      --left;
    });
  }
  const auto wait_a_while = [&] {
    MutexLock lock(&mu);
    if (mu.AwaitFor(kProgressInterval, [&] { return left == 0; })) return true;
    const size_t done = shards_.size() - left;
    spdlog::info("restoring snapshot {}: {} of {} shards, {} %", manifest.generation(), done, shards_.size(),
                 100 * done / shards_.size());
    return false;
  };
  while (!wait_a_while()) {
  }
  for (const absl::Status& status : statuses) RECON_RETURN_IF_ERROR(status);
  MutexLock lock(&mu_);
  sequence_ = parameters_only ? 0 : manifest.sequence();
  gate_ = StalenessGate(options_.rules.bound, parameters_only ? 0 : manifest.frontier_step());
  has_values_ = true;
  return absl::OkStatus();
}

void ParamServer::Cut(absl::AnyInvocable<void(StateCut)> done) {
  struct Collector {
    StateCut cut;
    std::atomic<size_t> left;
    absl::AnyInvocable<void(StateCut)> done;
  };
  auto collector = std::make_shared<Collector>();
  collector->done = std::move(done);
  auto cut = [this, collector] {
    MutexLock lock(&mu_);
    collector->left = shards_.size();
    collector->cut.shards.resize(shards_.size());
    collector->cut.sequence = sequence_;
    collector->cut.frontier_step = gate_.frontier();
    if (!closings_in_log_.empty()) {
      collector->cut.frontier_step = std::min(collector->cut.frontier_step, *closings_in_log_.begin());
    }
    collector->cut.log_from = sequence_ + 1;
    for (const auto& [step, first] : open_steps_) {
      // Without a log nothing can be asked of it.
      if (log_ != nullptr) collector->cut.log_from = std::min(collector->cut.log_from, first);
    }
    collector->cut.replay_seconds = replay_seconds();
    for (uint32_t i = 0; i < shards_.size(); ++i) {
      lanes_.Post(i, [this, i, collector] {
        collector->cut.shards[i] = shards_[i]->Cut();
        if (collector->left.fetch_sub(1, std::memory_order_acq_rel) == 1)
          collector->done(std::move(collector->cut));
      });
    }
  };
  // In the order of the log, and with nothing in it that is not on its way to the disk.
  if (log_ == nullptr) return cut();
  log_->Barrier([cut](const absl::Status&) { cut(); });
}

void ParamServer::NoteSnapshot(uint64_t log_from) {
  uint64_t needed;
  {
    MutexLock lock(&mu_);
    has_snapshot_ = true;
    // The snapshot before stays usable, too.
    needed = std::exchange(log_from_, log_from);
  }
  if (log_ == nullptr) return;
  const absl::Status trimmed = log_->Trim(needed);
  if (!trimmed.ok()) spdlog::warn("push log: {}", trimmed.message());
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
  const double lanes =
      std::max<double>(1, std::min<double>(options_.lanes, static_cast<double>(shards_.size())));
  const double bytes = log_ == nullptr ? 0 : static_cast<double>(log_->bytes_written());
  return static_cast<double>(apply_nanos_.load()) / 1e9 / lanes + bytes / limits::kLogReadBytesPerSecond;
}

void ParamServer::BeginReplay(const ApplyRules& rules) {
  const bool another_process =
      replay_rules_.empty() || replay_rules_.back().cluster_epoch != rules.cluster_epoch;
  replay_rules_.push_back(rules);
  SetShardRules(&replay_rules_.back(), another_process);
}

void ParamServer::SetShardRules(const ApplyRules* rules, bool drop_contributions) {
  const auto layout = this->layout();
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    const GroupPolicy policy = rules->PolicyOf(layout->groups()[layout->shards()[i].group]);
    lanes_.Post(i, [this, i, rules, policy, drop_contributions] {
      shards_[i]->SetRules(&rules->optimizer, policy);
      if (drop_contributions) shards_[i]->DropContributions();
    });
  }
}

absl::Status ParamServer::ReplayFrame(uint64_t sequence, const ByteChain& payload) {
  const ApplyRules& rules = replay_rules_.back();
  if (StatePlanes(rules.optimizer.kind) != state_planes()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the push log has the state of ", OptimizerName(rules.optimizer.kind),
                     ", --optimizer is ", OptimizerName(options_.rules.optimizer.kind)));
  }
  auto op = std::make_shared<Operation>();
  const auto damaged = [sequence](const absl::Status& status) {
    return absl::DataLossError(absl::StrCat("record ", sequence, ": ", status.message()));
  };
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
  op->bytes = payload.size();
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
  mu_.Await([this] { return bytes_in_flight_ < kReplayBytesInFlight; });
  ++operations_;
  bytes_in_flight_ += op->bytes;
  op->parts_left = static_cast<int>(op->frame.parts.size());
  for (size_t i = 0; i < op->frame.parts.size(); ++i) {
    lanes_.Post(op->frame.parts[i].shard, [this, op, i] {
      ApplyPart(op, i);
      if (op->parts_left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
      MutexLock done(&mu_);
      --operations_;
      bytes_in_flight_ -= op->bytes;
    });
  }
  return absl::OkStatus();
}

void ParamServer::ReplayClosing(uint64_t sequence, const StepClosing& closing) {
  MutexLock lock(&mu_);
  if (sequence <= sequence_) return;
  sequence_ = sequence;
  if (closing.step >= gate_.frontier()) gate_ = StalenessGate(options_.rules.bound, closing.step + 1);
  PostClosing(closing);
}

void ParamServer::ReplayControl(uint64_t sequence) {
  MutexLock lock(&mu_);
  sequence_ = std::max(sequence_, sequence);
}

void ParamServer::EndReplay() {
  SetShardRules(&options_.rules, /*drop_contributions=*/true);
  MutexLock lock(&mu_);
  mu_.Await([this] { return operations_ == 0; });
}

}  // namespace recon
