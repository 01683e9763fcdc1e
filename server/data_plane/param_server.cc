#include "server/data_plane/param_server.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/codec/frame_about.h"
#include "common/tensor/shard_assignment.h"
#include "common/trace/span_names.h"
#include "common/transport/send_window.h"
#include "server/data_plane/param_operation.h"

namespace recon {
namespace {

ParamServer::Options WithState(ParamServer::Options options) {
  if (!options.state) options.state = StateOf(options.rules);
  return options;
}

}  // namespace

struct ParamServer::Instruments {
  explicit Instruments(Metrics* metrics)
      : pushes(metrics->Counter("recon_server_pushes_total", "Pushes applied or counted in a mean")),
        duplicates(
            metrics->Counter("recon_server_duplicate_parts_total", "Parts that were sent again and dropped")),
        bytes_in(metrics->Counter("recon_server_received_bytes_total", "Bytes of frames received")),
        bytes_out(metrics->Counter("recon_server_sent_bytes_total", "Bytes of frames sent")),
        refused(metrics->Counter("recon_server_refused_frames_total", "Frames answered with an error")),
        staleness(metrics->Histogram("recon_server_staleness_updates",
                                     "Updates between a gradient's parameters and its apply",
                                     {kStalenessBounds.begin(), kStalenessBounds.end()})),
        latency(metrics->Histogram("recon_server_push_seconds",
                                   "From a push's arrival to its reply, waiting included",
                                   {.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10})) {}

  prometheus::Counter& pushes;
  prometheus::Counter& duplicates;
  prometheus::Counter& bytes_in;
  prometheus::Counter& bytes_out;
  prometheus::Counter& refused;
  prometheus::Histogram& staleness;
  prometheus::Histogram& latency;
};

ParamServer::ParamServer(const Options& options, Metrics* metrics)
    : options_(WithState(options)),
      instruments_(std::make_unique<Instruments>(metrics)),
      live_rules_({options.rules}),
      rules_(&live_rules_.back()),
      cluster_epoch_(options.rules.cluster_epoch),
      gate_(options.rules.bound, 0),
      lanes_("lane", options.apply_threads) {}

ParamServer::~ParamServer() {
  BeginDrain();
  std::unique_ptr<Alarm> alarm;
  {
    MutexLock lock(&mu_);
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return operations_ == 0; });
    alarm = std::move(grace_alarm_);
  }
  alarm.reset();  // It may be waiting for the lock.
  log_.reset();   // What it still calls back posts to the lanes.
}

absl::Status ParamServer::DefineModel(const ModelSpec& model) {
  RECON_ASSIGN_OR_RETURN(ParamLayout layout, ParamLayout::Create(model));
  MutexLock lock(&mu_);
  if (layout_ != nullptr) return absl::FailedPreconditionError("the model is defined already");
  const std::vector<uint32_t> server_of_shard = AssignShards(layout, options_.servers);
  std::vector<uint32_t> owned;
  uint64_t pages = 0;
  for (uint32_t i = 0; i < layout.shard_count(); ++i) {
    if (server_of_shard[i] != options_.server) continue;
    owned.push_back(i);
    pages += layout.shards()[i].pages();
  }
  RECON_RETURN_IF_ERROR(CheckMemory(pages, *rules_, model.name()));
  try {
    ReservePages(pages * PlanesOf(*rules_));
    shards_.resize(layout.shard_count());
    for (const uint32_t i : owned) {
      const ShardPlacement& placement = layout.shards()[i];
      const GroupPolicy policy = PolicyFor(*rules_, layout, i);
      shards_[i] = std::make_unique<Shard>(ShardId(i), placement, state_planes(), &rules_->optimizer, policy);
      shards_[i]->SetRules(rules_, policy);  // Its lane knows nothing of it yet.
    }
  } catch (const std::bad_alloc&) {  // A limit of the process or its container is lower.
    shards_.clear();
    return absl::ResourceExhaustedError(absl::StrCat("model ", model.name(), " needs ",
                                                     pages * PlanesOf(*rules_) * kPageBytes,
                                                     " bytes with its optimizer state: out of memory"));
  }
  // As many as a large frame has, but every lane has some.
  const size_t in_frame = FrameBytesFor(options_.servers) / (2 * kShardParamsMax);
  const size_t for_lanes = owned.size() / (2 * static_cast<size_t>(lanes_.size()));
  shards_in_a_row_ = static_cast<uint32_t>(std::max<size_t>(1, std::min(in_frame, for_lanes)));
  owned_ = std::move(owned);
  owned_pages_ = pages;
  server_of_shard_ = server_of_shard;
  first_open_.assign(layout.shard_count(), 0);
  layout_ = std::make_shared<const ParamLayout>(std::move(layout));
  return absl::OkStatus();
}

void ParamServer::Handle(const ByteChain& bytes, absl::Time now, Taken taken, Done done,
                         RequestContext context) {
  instruments_->bytes_in.Increment(static_cast<double>(bytes.size()));
  absl::StatusOr<Frame> frame = DecodeFrame(bytes);
  if (frame.ok() && frame->header.kind == static_cast<uint8_t>(FrameKind::kReply)) {
    frame = absl::InvalidArgumentError("frame: kind is 5, a reply; requests are 1 to 4");
  }
  if (!frame.ok()) {
    instruments_->refused.Increment();
    done(frame.status());
    return;
  }
  const auto kind = static_cast<FrameKind>(frame->header.kind);
  const bool untouched = context.untouched;
  auto op = MakePooled<Operation>(std::move(context));
  op->kind = kind;
  op->frame = *std::move(frame);
  op->worker = WorkerId(op->frame.header.worker);
  op->incarnation = Incarnation(op->frame.header.incarnation);
  if (CarriesGradient(kind)) op->raw = bytes;
  op->bytes = bytes.size();
  op->arrived = now;
  op->taken = std::move(taken);
  op->done = std::move(done);
  op->reply_parts.resize(op->frame.parts.size());
  op->reply_payloads.resize(op->frame.parts.size());
  op->outcomes.resize(op->frame.parts.size(), Shard::Outcome::kTaken);

  uint32_t lane = 0;
  {
    MutexLock lock(&mu_);
    ++operations_;
    bytes_in_flight_ += op->bytes;
    if (const auto sender = sessions_.find(op->worker); sender != sessions_.end()) {
      sender->second.bytes_in_flight += op->bytes;
      op->session = sender->second.number;
    }
    if (!op->frame.parts.empty()) lane = LaneKey(op->frame.parts[0].shard);  // There may be no model yet.
  }
  if (!untouched) return CheckAndSequence(op);
  // The thread that reads it for the check applies it, at once.
  lanes_.PostBehind(lane, Pooled([this, op] { CheckAndSequence(op); }));
}

void ParamServer::CheckAndSequence(const OperationPtr& op) {
  absl::Status status;
  if (op->kind != FrameKind::kPull) {
    const trace::Span span(trace::kReceiving, AboutFrame(op->frame));
    // Before the lock: it reads the whole payload.
    for (size_t i = 0; i < op->frame.parts.size() && status.ok(); ++i) {
      status = CheckContent(*op, i);
    }
  }
  {
    MutexLock lock(&mu_);
    status.Update(CheckSender(*op));
    if (status.ok() && op->kind != FrameKind::kPull) status.Update(CheckPush(*op));
    if (status.ok()) SequenceFrame(op);
  }
  if (status.ok()) return;
  if (absl::IsResourceExhausted(status)) SayOverload(status, op->arrived);
  Finish(op, status);
}

absl::Status ParamServer::CheckContent(const Operation& op, size_t index) const {
  const PartHeader& part = op.frame.parts[index];
  if (part.payload_bytes == 0) return absl::OkStatus();  // Refused later, unless the shard needs none.
  const auto codec = static_cast<CodecId>(part.codec);
  absl::Status status;
  if ((options_.refused_codecs >> part.codec & 1) != 0) {
    status = absl::InvalidArgumentError(
        absl::StrCat("codec ", CodecName(codec), " is not among those the server accepts"));
  } else if (op.kind == FrameKind::kInit && !IsValueCodec(codec)) {
    status = absl::InvalidArgumentError(
        absl::StrCat("codec ", CodecName(codec), ": initial values must be fp32, fp16 or bf16"));
  } else {
    status = CheckPayload(codec, part.count, op.frame.payloads[index]);
  }
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("step ", op.frame.header.step, " shard ", part.shard, ": ", status.message()));
}

absl::Status ParamServer::CheckSender(const Operation& op) const {
  const FrameHeader& header = op.frame.header;
  if (draining_) return absl::UnavailableError("the server is draining");
  if (changing_rules_) return absl::UnavailableError("the policy is being changed; ask again");
  if (header.cluster_epoch != cluster_epoch_) {
    const std::string differs =
        absl::StrCat("cluster epoch ", header.cluster_epoch, ", the server's is ", cluster_epoch_);
    // What the head has told the worker will soon be told here.
    if (!head() && header.cluster_epoch > cluster_epoch_) return absl::UnavailableError(differs);
    return absl::FailedPreconditionError(differs);
  }
  const auto session = sessions_.find(op.worker);
  if (!head() && (session == sessions_.end() || session->second.incarnation != op.incarnation)) {
    return absl::UnavailableError(
        absl::StrCat("worker ", op.worker.value(), " is not known here, or not yet; ask again"));
  }
  if (session == sessions_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", op.worker.value(), " is not registered"));
  }
  if (session->second.incarnation != op.incarnation) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", op.worker.value(), " is incarnation ",
                                                      session->second.incarnation.value(), ", not ",
                                                      header.incarnation));
  }
  // Who a worker is anybody can read in the status.
  if (op.sender != op.incarnation) {
    return absl::PermissionDeniedError(
        absl::StrCat("a frame of worker ", op.worker.value(), ", incarnation ", op.incarnation.value(),
                     ": the connection that it came over has not shown that process' secret"));
  }
  if (op.kind != FrameKind::kInit && !has_values_) {
    return absl::UnavailableError("the server has no parameters yet");
  }
  RECON_RETURN_IF_ERROR(CheckBytesInFlight(session->second, op.bytes));
  if (CarriesGradient(op.kind)) RECON_RETURN_IF_ERROR(CheckLogRoom());
  return CheckParts(op);
}

absl::Status ParamServer::CheckParts(const Operation& op) const {
  uint64_t reply_bytes = kFrameHeaderBytes + op.frame.parts.size() * kPartHeaderBytes;
  for (size_t i = 0; i < op.frame.parts.size(); ++i) {
    const PartHeader& part = op.frame.parts[i];
    if (part.shard >= shards_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", i, ": shard ", part.shard, ", the model has ", shards_.size()));
    }
    if (i > 0 && part.shard <= op.frame.parts[i - 1].shard) {
      return absl::InvalidArgumentError(absl::StrCat("part ", i, ": shard ", part.shard, " after shard ",
                                                     op.frame.parts[i - 1].shard, ", they must ascend"));
    }
    if (shards_[part.shard] == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", i, ": shard ", part.shard, " is not on server ", options_.server));
    }
    const uint32_t size = layout_->shards()[part.shard].size;
    if (part.count != size) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", i, ": ", part.count, " values, shard ", part.shard, " has ", size));
    }
    reply_bytes += EncodedBytes(static_cast<CodecId>(op.frame.header.reply_codec), size);
    if (part.payload_bytes == 0 && op.kind != FrameKind::kPull) {
      return absl::InvalidArgumentError(
          absl::StrCat("part ", i, ": 0 bytes of payload in a frame of kind ", op.frame.header.kind));
    }
  }
  const bool has_reply = op.kind == FrameKind::kPull || op.kind == FrameKind::kPushPull;
  if (has_reply && reply_bytes > limits::kFrameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the reply would have ", reply_bytes,
                                                   " bytes, allowed are ", limits::kFrameBytesMax,
                                                   ": ask for fewer shards at a time"));
  }
  return absl::OkStatus();
}

absl::Status ParamServer::CheckPush(const Operation& op) const {
  const FrameHeader& header = op.frame.header;
  if (op.kind == FrameKind::kInit) {
    // Again, if it has not heard that they came; never once training may have begun.
    if (op.worker == initializer_ && !has_snapshot_) return absl::OkStatus();
    if (!head() && !has_values_)
      return absl::UnavailableError("initial values were not asked for, or not yet");
    return absl::FailedPreconditionError("initial values were not asked from this worker");
  }
  if (log_ != nullptr && !has_snapshot_) {
    return absl::UnavailableError("there is no snapshot that a log could go on from, yet");
  }
  if (header.push_parts > shards_.size() || header.push_parts < op.frame.parts.size()) {
    return absl::InvalidArgumentError(absl::StrCat("push has ", header.push_parts, " shards, this frame ",
                                                   op.frame.parts.size(), ", the model ", shards_.size()));
  }
  const size_t here = header.server_parts != 0 ? header.server_parts : owned_.size();
  if (here > owned_.size() || here < op.frame.parts.size() || here > header.push_parts) {
    return absl::InvalidArgumentError(absl::StrCat("push has ", header.push_parts, " shards, ", here,
                                                   " of them on this server, which has ", owned_.size(),
                                                   ", and this frame has ", op.frame.parts.size()));
  }
  if (!std::isfinite(header.gradient_norm) || header.gradient_norm < 0) {
    return absl::InvalidArgumentError(absl::StrCat("gradient norm is ", header.gradient_norm));
  }
  if (header.samples == 0) return absl::InvalidArgumentError("push of 0 samples");
  // A step that is open has nothing of it that would count: what comes is no repetition.
  const Session& session = sessions_.at(op.worker);
  if (gate_.bound() == 0 && (session.parked || header.step < session.first_step) &&
      std::none_of(op.frame.parts.begin(), op.frame.parts.end(),
                   [&](const PartHeader& part)
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return Closed(header.step, part.shard); })) {
    return NotInStep(header.step);
  }
  // An asynchronous worker may know of acknowledgements that this process does not, until its next heartbeat.
  const uint64_t known = gate_.bound() < 0 ? limits::kStepMax
                                           : std::max(gate_.next_step(op.worker), gate_.frontier()) +
                                                 static_cast<uint64_t>(gate_.bound());
  if (header.step >= known + limits::kStepsAheadMax) {
    return absl::InvalidArgumentError(absl::StrCat("step ", header.step, ", the worker's next is ", known,
                                                   ", allowed are ", limits::kStepsAheadMax, " beyond it"));
  }
  for (const PartHeader& part : op.frame.parts) {
    if (part.version == kNoVersion) {
      return absl::InvalidArgumentError(
          absl::StrCat("shard ", part.shard, ": a push must name the version it was computed from"));
    }
  }
  return absl::OkStatus();
}

void ParamServer::SequenceFrame(const OperationPtr& op) {
  op->rules = rules_;
  if (log_ == nullptr || !CarriesGradient(op->kind)) {
    op->raw = ByteChain();  // Its head may be all that keeps a buffer of the transport's.
    return DeliverFrame(op);
  }
  const int64_t traced_ns = trace::On() ? MonotonicNanos() : 0;
  auto logged = [this, op, traced_ns](const absl::Status& written) {
    if (traced_ns != 0) trace::RecordPassive(trace::kLogging, traced_ns, AboutFrame(op->frame));
    if (!written.ok()) {
      Finish(op, LogFailed(written));
      return GiveUpWaiting(written);
    }
    MutexLock lock(&mu_);
    DeliverFrame(op);
  };
  log_->Append(LogRecordKind::kFrame, std::move(op->raw), Pooled(std::move(logged)));
}

void ParamServer::RecordDuplicates(size_t parts) {
  instruments_->duplicates.Increment(static_cast<double>(parts));
}

void ParamServer::RecordPush() { instruments_->pushes.Increment(); }

void ParamServer::RecordStaleness(uint64_t staleness) {
  instruments_->staleness.Observe(static_cast<double>(staleness));
}

void ParamServer::Finish(const OperationPtr& op, const absl::Status& status) {
  absl::StatusOr<ByteChain> reply = ByteChain();
  if (status.ok()) {
    Frame frame;
    frame.header = op->frame.header;
    frame.header.kind = static_cast<uint8_t>(FrameKind::kReply);
    frame.parts = std::move(op->reply_parts);
    frame.payloads = std::move(op->reply_payloads);
    reply = EncodeFrame(std::move(frame));
    instruments_->bytes_out.Increment(static_cast<double>(reply->size()));
    if (op->frame.header.kind != static_cast<uint8_t>(FrameKind::kPull)) {
      instruments_->latency.Observe(absl::ToDoubleSeconds(Now() - op->arrived));
    }
  } else {
    reply = status;
    instruments_->refused.Increment();
  }
  if (trace::On() && CarriesGradient(static_cast<FrameKind>(op->frame.header.kind))) {
    trace::RecordPassive(trace::kFrame, trace::NanosAt(op->arrived), AboutFrame(op->frame));
  }
  op->done(std::move(reply));
  MutexLock lock(&mu_);
  --operations_;
  bytes_in_flight_ -= op->bytes;
  const auto sender = sessions_.find(op->worker);
  if (sender != sessions_.end() && sender->second.number == op->session) {
    sender->second.bytes_in_flight -= op->bytes;
  }
  const auto kind = static_cast<FrameKind>(op->frame.header.kind);
  if (status.ok() && CarriesGradient(kind) && recover_ms_ == 0) {
    recover_ms_ = absl::ToDoubleMilliseconds(ProcessUptime() - options_.began);
    first_push_ms_ = recover_ms_ - std::max(0.0, first_worker_ms_ - ready_ms_);
    LogInfo(
        "first push acknowledged {:.0f} ms after the server's start, {:.0f} ms without waiting for a worker",
        recover_ms_, first_push_ms_);
  }
}

void ParamServer::AwaitInitialValues(WorkerId worker, std::function<void()> ready) {
  {
    MutexLock lock(&mu_);
    initializer_ = worker;
    has_values_ = owned_.empty();  // Those that are here may be another worker's: all are asked for anew.
    shards_to_init_ = std::set<uint32_t>(owned_.begin(), owned_.end());
    if (!has_values_) {
      on_initialized_ = std::move(ready);
      return;
    }
  }
  ready();
}

bool ParamServer::has_values() const {
  MutexLock lock(&mu_);
  return has_values_;
}

void ParamServer::Tick(absl::Time now) {
  Operations expired;
  {
    MutexLock lock(&mu_);
    for (const StalenessGate::Ticket ticket : gate_.TakeExpired(now)) {
      expired.push_back(std::move(waiting_[ticket]));
      waiting_.erase(ticket);
    }
    for (const auto& [ticket, op] : waiting_) {
      if (!op->in_step || now - op->waiting_since < limits::kInStepPatience) continue;
      op->in_step = false;
      op->taken();  // Under the lock: its reply may go out as soon as it is released.
    }
  }
  for (const OperationPtr& op : expired) {
    Finish(op, absl::DeadlineExceededError(absl::StrCat("step ", op->frame.header.step, " waited ",
                                                        absl::FormatDuration(now - op->arrived),
                                                        " for the other workers; ask again")));
  }
}

void ParamServer::BeginDrain() {
  std::map<StalenessGate::Ticket, OperationPtr> waiting;
  {
    MutexLock lock(&mu_);
    draining_ = true;
    waiting.swap(waiting_);
    gate_.TakeExpired(absl::InfiniteFuture());
  }
  for (const auto& [ticket, op] : waiting) Finish(op, absl::UnavailableError("the server is draining"));
}

bool ParamServer::WaitUntilIdle(absl::Duration timeout) {
  MutexLock lock(&mu_);
  return mu_.AwaitFor(timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return operations_ == 0; });
}

ParamServer::Stats ParamServer::GetStats() const {
  MutexLock lock(&mu_);
  Stats stats;
  stats.pushes = pushes_;
  stats.updates = updates_.load(std::memory_order_relaxed);
  stats.duplicates = duplicates_;
  stats.sequence = sequence_;
  stats.frontier_step = gate_.frontier();
  stats.recover_ms = recover_ms_;
  stats.first_push_ms = first_push_ms_;
  for (const auto& [worker, session] : sessions_) {
    WorkerStats& out = stats.workers[worker];
    out.pushes = session.pushes;
    out.active = gate_.active(worker);
    out.next_step = gate_.next_step(worker);
    out.staleness_pushes = session.staleness_pushes;
    out.staleness_mean = session.staleness_pushes == 0
                             ? 0
                             : session.staleness_sum / static_cast<double>(session.staleness_pushes);
    out.staleness_max = session.staleness_max;
    out.staleness_counts.assign(session.staleness_counts.begin(), session.staleness_counts.end());
    out.waiting_seconds = session.waiting_seconds;
    out.late_steps = session.late_steps;
  }
  return stats;
}

bool ParamServer::Knows(Incarnation process) const {
  MutexLock lock(&mu_);
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [process](const auto& entry) { return entry.second.incarnation == process; });
}

uint64_t ParamServer::PushesOf(WorkerId worker) const {
  MutexLock lock(&mu_);
  const auto session = sessions_.find(worker);
  return session == sessions_.end() ? 0 : session->second.pushes;
}

uint64_t ParamServer::sequence() const {
  MutexLock lock(&mu_);
  return sequence_;
}

uint64_t ParamServer::push_sequence() const {
  MutexLock lock(&mu_);
  return push_sequence_;
}

uint64_t ParamServer::cluster_epoch() const {
  MutexLock lock(&mu_);
  return cluster_epoch_;
}

uint64_t ParamServer::frontier() const {
  MutexLock lock(&mu_);
  return FrontierInLog();
}

uint64_t ParamServer::FrontierInLog() const {
  return closings_in_log_.empty() ? gate_.frontier() : std::min(gate_.frontier(), *closings_in_log_.begin());
}

std::shared_ptr<const ParamLayout> ParamServer::layout() const {
  MutexLock lock(&mu_);
  return layout_;
}

}  // namespace recon
