// Of ParamServer: a sequenced frame's way through the lanes, and its reply's.

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/base/cpu_usage.h"
#include "common/base/limits.h"
#include "common/codec/codec.h"
#include "common/codec/frame_about.h"
#include "common/trace/span_names.h"
#include "server/data_plane/param_operation.h"
#include "server/data_plane/param_server.h"

namespace recon {

void ParamServer::DeliverFrame(const OperationPtr& op) {
  if (CarriesGradient(op->kind)) {
    push_sequence_ = ++sequence_;
    if (op->rules->bound == 0) {
      open_steps_.try_emplace(op->frame.header.step, sequence_);
      op->in_step = NoteBegun(*op);
    }
  }
  OnLanes(op, &ParamServer::DeliverPart, &ParamServer::Delivered, &apply_nanos_);
}

void ParamServer::OnLanes(const OperationPtr& op, PartStep step, LastStep last,
                          std::atomic<uint64_t>* cpu_nanos) {
  const auto lane_of = [this](const PartHeader& part) { return lanes_.LaneOf(LaneKey(part.shard)); };
  absl::InlinedVector<bool, 64> has_parts(static_cast<size_t>(lanes_.size()), false);
  for (const PartHeader& part : op->frame.parts) has_parts[static_cast<size_t>(lane_of(part))] = true;
  op->lanes_left = static_cast<int>(std::count(has_parts.begin(), has_parts.end(), true));
  for (int lane = 0; lane < lanes_.size(); ++lane) {
    if (!has_parts[static_cast<size_t>(lane)]) continue;
    auto share = [this, op, step, last, cpu_nanos, lane, lane_of] {
      {
        const ThreadCpuTimer timer(cpu_nanos);
        const trace::Span span(cpu_nanos != nullptr ? trace::kApplying : trace::kReplying,
                               AboutFrame(op->frame));
        for (size_t i = 0; i < op->frame.parts.size(); ++i) {
          if (lane_of(op->frame.parts[i]) == lane) (this->*step)(op, i);
        }
      }
      if (op->lanes_left.fetch_sub(1, std::memory_order_acq_rel) == 1) (this->*last)(op);
    };
    lanes_.Post(static_cast<uint32_t>(lane), Pooled(std::move(share)));
  }
}

void ParamServer::ApplyPart(const OperationPtr& op, size_t index) {
  const PartHeader& part = op->frame.parts[index];
  const FrameHeader& header = op->frame.header;
  Shard& shard = *shards_[part.shard];
  EncodedGradient gradient{static_cast<CodecId>(part.codec), part.count,
                           std::move(op->frame.payloads[index])};
  if (op->kind == FrameKind::kInit) {
    shard.SetInitialValues(gradient);
  } else if (CarriesGradient(op->kind)) {
    Shard::PushId id{op->worker, op->incarnation, header.step};
    // 0 is also what a worker says that does not know: its version is from before a restart.
    if (op->left_out) {
      if (op->rules->bound != 0) shard.LeaveOut(id);
      return;
    }
    if (part.version != 0) id.base = shard.WithoutLeftOut(part.version);
    if (part.has_learning_rate != 0) id.learning_rate = part.learning_rate;
    const double clip = shard.averaged() ? 0 : op->rules->optimizer.clip_norm;
    const double scale = clip > 0 && header.gradient_norm > clip ? clip / header.gradient_norm : 1;
    // Without a version it is unknown how old the gradient is; where there was no update yet it is not.
    const bool known = part.version != 0 || shard.version() == 0;
    const uint64_t staleness = known ? shard.version() - std::min(part.version, shard.version()) : 0;
    Shard::Outcome outcome;
    if (op->rules->bound == 0) {
      Contribution contribution;
      contribution.order_key = header.order_key;
      contribution.samples = header.samples;
      contribution.weight = header.samples * scale;
      contribution.learning_rate = id.learning_rate;
      contribution.gradient = std::move(gradient);
      outcome = shard.Contribute(id, std::move(contribution));
    } else {
      if (AnswersAtOnce(*op) && !IsSparse(gradient.codec)) {
        const auto codec = static_cast<CodecId>(header.reply_codec);
        const auto memory = [&] { return op->reply_buffer.ForPart(op->frame, index, gradient.payload); };
        outcome = shard.ApplyAndEncode(id, gradient, scale, codec, memory, &op->reply_payloads[index]);
      } else {
        outcome = shard.Apply(id, gradient, scale);
      }
    }
    op->outcomes[index] = outcome;
    if (outcome == Shard::Outcome::kTaken) {
      op->parts_taken.fetch_add(1, std::memory_order_relaxed);
      if (known) op->staleness_known.store(true, std::memory_order_relaxed);
      RaiseTo(staleness, &op->staleness_max);
      RaiseTo(shard.version(), &updates_);
    }
  }
}

// Whether it has a reply (replayed ones have none) that waits for nobody and has all parameters in 16 bits.
bool ParamServer::AnswersAtOnce(const Operation& op) const {
  return op.done != nullptr && op.kind == FrameKind::kPushPull && op.rules->bound < 0 &&
         op.frame.header.reply_codec != static_cast<uint8_t>(CodecId::kFp32);
}

void ParamServer::DeliverPart(const OperationPtr& op, size_t index) {
  const PartHeader& part = op->frame.parts[index];
  if (op->kind != FrameKind::kPull) ApplyPart(op, index);
  op->reply_parts[index].shard = part.shard;
  op->reply_parts[index].count = part.count;
  op->reply_parts[index].codec = op->frame.header.reply_codec;
  op->reply_parts[index].version = shards_[part.shard]->version();
}

void ParamServer::Delivered(const OperationPtr& op) {
  if (op->kind == FrameKind::kPull) return Gather(op);
  if (CarriesGradient(op->kind) && op->rules->bound >= 0 && !op->in_step) op->taken();
  Operations released;
  std::function<void()> initialized;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    if (op->kind == FrameKind::kInit) {
      for (const PartHeader& part : op->frame.parts) shards_to_init_.erase(part.shard);
      if (shards_to_init_.empty() && !has_values_ && op->worker == initializer_) {
        has_values_ = true;
        initialized = std::move(on_initialized_);
      }
    } else if (sessions_.count(op->worker) == 0 || sessions_[op->worker].incarnation != op->incarnation) {
      status = absl::FailedPreconditionError("the worker was evicted");
    } else {
      status = CheckCounts(*op);
      if (status.ok()) RecordDelivery(op);
    }
    if (status.ok() && (!CarriesGradient(op->kind) || !MustWait(op))) {
      released.push_back(op);
    } else if (status.ok()) {
      if (draining_) {
        status = absl::UnavailableError("the server is draining");
      } else if (changing_rules_) {
        status = absl::UnavailableError("the policy is being changed; ask again");
      } else if (!log_status_.ok()) {
        status = LogFailed(log_status_);
      } else if (waiting_.size() >= limits::kWaitingRepliesMax) {
        status = absl::ResourceExhaustedError(absl::StrCat("waiting replies: ", waiting_.size(), " already"));
      } else {
        Wait(op);
      }
    }
    for (OperationPtr& other : GateMoved()) released.push_back(std::move(other));
  }
  if (initialized) initialized();
  if (!status.ok()) Finish(op, status);
  AnswerReleased(std::move(released));
}

void ParamServer::AnswerReleased(Operations ops) {
  if (ops.empty()) return;
  // Those who ask for the same shards side by side: one encoding serves them all. (It allocates even for
  // one.)
  if (ops.size() > 1) {
    std::stable_sort(ops.begin(), ops.end(), [](const OperationPtr& a, const OperationPtr& b) {
      return a->frame.parts.front().shard < b->frame.parts.front().shard;
    });
  }
  // Behind the closing that released them, if there was one.
  if (log_ != nullptr && ops.front()->rules->bound == 0) {
    log_->Barrier([this, ops = std::move(ops)](const absl::Status& written) {
      for (const OperationPtr& op : ops) written.ok() ? Answer(op) : Finish(op, LogFailed(written));
    });
    return;
  }
  for (const OperationPtr& op : ops) Answer(op);
}

void ParamServer::Answer(const OperationPtr& op) {
  const auto encoded = [](const ByteChain& payload) { return payload.size() > 0; };
  if (op->kind != FrameKind::kPushPull ||
      std::all_of(op->reply_payloads.begin(), op->reply_payloads.end(), encoded)) {
    return Finish(op, absl::OkStatus());
  }
  // Behind the closing of the step in every lane's queue: the reply has its update.
  OnLanes(op, &ParamServer::EncodeReply, &ParamServer::FinishOk, nullptr);
}

// Lane of the part.
void ParamServer::EncodeReply(const OperationPtr& op, size_t index) {
  const PartHeader& part = op->frame.parts[index];
  Shard& shard = *shards_[part.shard];
  op->reply_parts[index].version = shard.version();
  const auto codec = static_cast<CodecId>(op->frame.header.reply_codec);
  Shard::Update update{codec, ByteChain()};
  if (op->frame.header.kind == static_cast<uint8_t>(FrameKind::kPull) && part.payload_bytes > 0) {
    update = shard.EncodedUnlike(codec, static_cast<CodecId>(part.codec), op->frame.payloads[index]);
  } else if (shard.version() != part.version) {
    update = shard.EncodedSince(codec, part.version);
  }
  op->reply_parts[index].codec = static_cast<uint8_t>(update.codec);
  op->reply_payloads[index] = std::move(update.payload);
}

void ParamServer::Gather(const OperationPtr& op) {
  op->kind = FrameKind::kPushPull;  // From here on a pull is answered as a push-pull is.
  Answer(op);
}

void ParamServer::FinishOk(const OperationPtr& op) { Finish(op, absl::OkStatus()); }

}  // namespace recon
