// Of ParamServer: how the records of the log bring a restored state up to date.

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "server/data_plane/frame_checks.h"
#include "server/data_plane/param_server.h"

namespace recon {
namespace {

// Frames being replayed hold their segments of the log.
constexpr uint64_t kReplayBytesInFlight = uint64_t{128} << 20;

// Another version of the program wrote it: no damage, and nothing that could be left out.
absl::Status CheckFrameVersion(uint64_t sequence, const ByteChain& payload) {
  FrameHeader header;
  if (payload.size() < kFrameHeaderBytes) return absl::OkStatus();  // DecodeFrame() says what is wrong.
  payload.CopyTo(&header, kFrameHeaderBytes);
  if (header.magic != kFrameMagic) return absl::OkStatus();
  if (header.version >= kFrameVersionMin && header.version <= kFrameVersion) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("record ", sequence, " of the push log has a frame of version ", header.version,
                   ", this program reads ", kFrameVersionMin, " to ", kFrameVersion,
                   ": drain the job with the program that wrote it, then start this one"));
}

// The push that a record has.
absl::StatusOr<OperationPtr> DecodeRecord(const ByteChain& payload) {
  RECON_ASSIGN_OR_RETURN(Frame frame, DecodeFrame(payload));
  auto op = std::make_shared<Operation>();
  op->frame = std::move(frame);
  op->kind = static_cast<FrameKind>(op->frame.header.kind);
  if (!CarriesGradient(op->kind)) {
    return absl::DataLossError(absl::StrCat("frame of kind ", op->frame.header.kind));
  }
  op->worker = WorkerId(op->frame.header.worker);
  op->incarnation = Incarnation(op->frame.header.incarnation);
  op->bytes = payload.size();
  op->outcomes.resize(op->frame.parts.size(), PushOutcome::kTaken);
  for (size_t i = 0; i < op->frame.parts.size(); ++i) {
    const PartHeader& part = op->frame.parts[i];
    if (part.payload_bytes == 0)
      return absl::DataLossError(absl::StrCat("shard ", part.shard, " without a payload"));
    RECON_RETURN_IF_ERROR(CheckPayload(static_cast<CodecId>(part.codec), part.count, op->frame.payloads[i]));
    op->shards.push_back(part.shard);
  }
  return op;
}

absl::Status Damaged(uint64_t sequence, const absl::Status& status) {
  return absl::DataLossError(absl::StrCat("record ", sequence, ": ", status.message()));
}

}  // namespace

void ParamServer::BeginReplay(const ApplyRules& rules) {
  replay_rules_ = std::make_shared<const ApplyRules>(rules);
  shards_.SetRules(replay_rules_);
}

absl::Status ParamServer::ReplayFrame(uint64_t sequence, const ByteChain& payload) {
  if (const StateOwner owner = StateOf(*replay_rules_); owner.planes() > 0 && !Compatible(owner, state())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the push log has the state of ", StateName(owner), ", ", SaidOptimizer()));
  }
  RECON_RETURN_IF_ERROR(CheckFrameVersion(sequence, payload));
  const absl::StatusOr<OperationPtr> decoded = DecodeRecord(payload);
  if (!decoded.ok()) return Damaged(sequence, decoded.status());
  const OperationPtr& op = *decoded;
  const FrameHeader& header = op->frame.header;
  op->rules = replay_rules_;
  op->left_out = left_out_.count({header.worker, header.incarnation, header.step}) > 0;
  MutexLock lock(&mu_);
  if (const absl::Status checked = CheckParts(*op, shards_.map()); !checked.ok())
    return Damaged(sequence, checked);
  recovered_[op->worker] = op->incarnation;
  // Before the cut only contributions to steps that were open then are of use.
  if (sequence <= sequence_ && op->rules->bound != 0) return absl::OkStatus();
  sequence_ = std::max(sequence_, sequence);
  const auto open = [this, &header](uint32_t shard) {
    mu_.AssertHeld();
    return header.step >= closed_.first_open(shard);
  };
  if (rules_->bound == 0 && std::any_of(op->shards.begin(), op->shards.end(), open)) {
    closed_.NoteFirstPush(header.step, sequence);
  }
  mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return memory_.held() < kReplayBytesInFlight; });
  ++operations_;
  op->account = memory_.Hold(op->worker, op->bytes);
  shards_.Apply(op, NextStep::To<&ParamServer::Replayed>(this));
  return absl::OkStatus();
}

void ParamServer::Replayed(const OperationPtr& op) {
  MutexLock lock(&mu_);
  RECON_CHECK_GT(operations_, 0);
  --operations_;
  memory_.Release(op->worker, op->account, op->bytes);
}

absl::Status ParamServer::ReplayClosing(uint64_t sequence, const StepClosing& closing) {
  MutexLock lock(&mu_);
  if (!closing.shards.empty() && closing.shards.back() >= shards_.map().size()) {
    return absl::DataLossError(absl::StrCat("record ", sequence, ": closing of shard ", closing.shards.back(),
                                            ", the model has ", shards_.map().size()));
  }
  if (sequence <= sequence_) return absl::OkStatus();
  sequence_ = sequence;
  closed_.NoteReplayed(closing);
  TellClosing(closing);
  shards_.Close(closing);
  return absl::OkStatus();
}

void ParamServer::ReplayFreeze(uint64_t sequence) {
  MutexLock lock(&mu_);
  if (sequence <= sequence_) return;
  sequence_ = sequence;
  shards_.HideVersions();
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
  closed_.ForgetFirstPushes();
  // Asynchronous workers have steps of their own.
  if (rules_->bound < 0) return shards_.BeginHistory(0);
  first_step = book_.BeginAnew(rules_->bound, first_step);
  closed_.CloseBefore(first_step);
  shards_.BeginHistory(first_step);
}

void ParamServer::EndReplay() {
  MutexLock lock(&mu_);
  shards_.SetRules(rules_);
  // Contributions to steps that are not closed stay: their workers send them again, and the closing of a step
  // may be on its way from the head.
  if (rules_->bound != 0) shards_.DropContributions();
  mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return operations_ == 0; });
  if (rules_->bound != 0) return;
  // The head decides for all shards.
  std::vector<uint32_t> known(shards_.map().size());
  std::iota(known.begin(), known.end(), 0);
  book_.SkipTo(closed_.FrontierOf(head() ? known : shards_.map().owned()));
}

}  // namespace recon
