// A frame's way through the server: check -> log -> deliver -> note -> answer.

#include "server/data_plane/param_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/away_words.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/codec/frame_about.h"
#include "common/trace/span_names.h"
#include "server/data_plane/frame_checks.h"

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
        cut_values(
            metrics->Counter("recon_server_cut_values_total",
                             "Parameters cut to the largest value of the 16 bits that a worker asked for")),
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
  prometheus::Counter& cut_values;
  prometheus::Histogram& staleness;
  prometheus::Histogram& latency;
};

ParamServer::ParamServer(const Options& options, Metrics* metrics)
    : options_(WithState(options)),
      instruments_(std::make_unique<Instruments>(metrics)),
      rules_(std::make_shared<const ApplyRules>(options.rules)),
      cluster_epoch_(options.rules.cluster_epoch),
      book_(options.rules.bound,
            options.server == 0 ? StepBook::Authority::kDecides : StepBook::Authority::kFollows, &closed_),
      replies_(&book_),
      memory_(options.bytes_in_flight_max, options.memory_bytes),
      shards_(options.servers, options.apply_threads, options_.state->planes()) {}

ParamServer::~ParamServer() {
  BeginDrain();
  std::unique_ptr<Alarm> alarm;
  {
    MutexLock lock(&mu_);
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return operations_ == 0; });
    alarm = std::move(grace_alarm_);
  }
  alarm.reset();  // It may be waiting for the lock.
  log_.Close();   // What it still calls back posts to the lanes.
}

void ParamServer::Handle(const ByteChain& bytes, absl::Time now, Taken taken, Done done,
                         RequestContext context) {
  instruments_->bytes_in.Increment(static_cast<double>(bytes.size()));
  absl::StatusOr<Frame> frame = DecodeFrame(bytes);
  if (frame.ok() && frame->header.kind == static_cast<uint8_t>(FrameKind::kReply)) {
    frame = absl::InvalidArgumentError("frame: kind is 5, a reply; requests are 1 to 4, 6 and 7");
  }
  if (!frame.ok()) {
    instruments_->refused.Increment();
    done(frame.status());
    return;
  }
  const bool untouched = context.untouched;
  auto op = MakePooled<Operation>(std::move(context));
  op->kind = static_cast<FrameKind>(frame->header.kind);
  op->frame = *std::move(frame);
  op->worker = WorkerId(op->frame.header.worker);
  op->incarnation = Incarnation(op->frame.header.incarnation);
  if (CarriesGradient(op->kind)) op->raw = bytes;
  op->bytes = bytes.size();
  op->arrived = now;
  op->taken = std::move(taken);
  op->done = std::move(done);
  op->shards.reserve(op->frame.parts.size());
  for (const PartHeader& part : op->frame.parts) op->shards.push_back(part.shard);
  op->reply_parts.resize(op->frame.parts.size());
  op->reply_payloads.resize(op->frame.parts.size());
  op->outcomes.resize(op->frame.parts.size(), PushOutcome::kTaken);
  {
    MutexLock lock(&mu_);
    ++operations_;
    op->account = memory_.Hold(op->worker, op->bytes);
    if (untouched) {
      // The thread that reads it for the check applies it, at once.
      const uint32_t first = op->shards.empty() ? 0 : op->shards.front();
      return shards_.PostBehind(first, Pooled([this, op] { Check(op); }));
    }
  }
  Check(op);
}

// On the caller's thread, or the lane of the first part.
void ParamServer::Check(const OperationPtr& op) {
  absl::Status status;
  if (!Asks(op->kind)) {
    const trace::Span span(trace::kReceiving, AboutFrame(op->frame));
    // Before the lock: it reads the whole payload.
    for (size_t i = 0; i < op->frame.parts.size() && status.ok(); ++i) {
      status = CheckContent(*op, i, options_.refused_codecs);
    }
  }
  {
    MutexLock lock(&mu_);
    status.Update(CheckSender(*op));
    if (status.ok() && op->kind != FrameKind::kPull) status.Update(CheckKind(*op));
    if (status.ok()) return Sequence(op);
  }
  if (absl::IsResourceExhausted(status)) SayOverload(status, op->arrived);
  Finish(op, status);
}

absl::Status ParamServer::CheckSender(const Operation& op) const {
  const FrameHeader& header = op.frame.header;
  if (draining_) return DrainingError();
  if (changing_rules_) return absl::UnavailableError("the policy is being changed; ask again");
  if (header.cluster_epoch != cluster_epoch_) {
    const std::string differs =
        absl::StrCat("cluster epoch ", header.cluster_epoch, ", the server's is ", cluster_epoch_);
    // What the head has told the worker will soon be told here.
    if (!head() && header.cluster_epoch > cluster_epoch_) return absl::UnavailableError(differs);
    return absl::FailedPreconditionError(differs);
  }
  const auto worker = workers_.find(op.worker);
  if (!head() && (worker == workers_.end() || worker->second.incarnation != op.incarnation)) {
    return absl::UnavailableError(
        absl::StrCat("worker ", op.worker.value(), " is not known here, or not yet; ask again"));
  }
  if (worker == workers_.end()) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", op.worker.value(), " is not registered"));
  }
  if (worker->second.incarnation != op.incarnation) {
    return absl::FailedPreconditionError(absl::StrCat("worker ", op.worker.value(), " is incarnation ",
                                                      worker->second.incarnation.value(), ", not ",
                                                      header.incarnation));
  }
  // Who a worker is anybody can read in the status.
  if (op.sender != op.incarnation) {
    return absl::PermissionDeniedError(
        absl::StrCat("a frame of worker ", op.worker.value(), ", incarnation ", op.incarnation.value(),
                     ": the connection that it came over has not shown that process' secret"));
  }
  if (op.kind != FrameKind::kInit && !values_.complete()) {
    return absl::UnavailableError("the server has no parameters yet");
  }
  RECON_RETURN_IF_ERROR(memory_.CheckFrame(op.worker, op.bytes, rules_->bound == 0));
  if (CarriesGradient(op.kind)) RECON_RETURN_IF_ERROR(log_.CheckRoom());
  return CheckParts(op, shards_.map());
}

absl::Status ParamServer::CheckKind(const Operation& op) const {
  const bool means = rules_->optimizer.kind == OptimizerKind::kMean;
  if ((op.kind == FrameKind::kPullMean || op.kind == FrameKind::kState) && !means) {
    return absl::FailedPreconditionError(
        "means and workers' state are for jobs whose workers have the optimizer (--optimizer mean)");
  }
  if (op.kind == FrameKind::kPullMean) return absl::OkStatus();
  if (op.kind == FrameKind::kState) {
    return state_upload_.Check(op.worker, op.frame.header.order_key, op.frame.header.step, op.shards);
  }
  return CheckPush(op);
}

absl::Status ParamServer::CheckPush(const Operation& op) const {
  if (op.kind == FrameKind::kInit) {
    // Again, if it has not heard that they came; never once training may have begun.
    if (values_.AskedOf(op.worker) && !log_.has_snapshot()) return absl::OkStatus();
    if (!head() && !values_.complete())
      return absl::UnavailableError("initial values were not asked for, or not yet");
    return absl::FailedPreconditionError("initial values were not asked from this worker");
  }
  RECON_RETURN_IF_ERROR(log_.CheckSnapshot());
  RECON_RETURN_IF_ERROR(CheckPushHeader(op, shards_.map()));
  return book_.CheckStep(op.worker, op.frame.header.step, op.shards);
}

void ParamServer::Sequence(const OperationPtr& op) {
  op->rules = rules_;
  if (!CarriesGradient(op->kind)) return Deliver(op);
  op->Enter(Operation::Stage::kLogging);
  const int64_t traced_ns = trace::On() && log_.on() ? MonotonicNanos() : 0;
  InOrder(
      LogRecordKind::kFrame, std::exchange(op->raw, ByteChain()),
      [this, op, traced_ns] {
        mu_.AssertHeld();
        if (traced_ns != 0) trace::RecordPassive(trace::kLogging, traced_ns, AboutFrame(op->frame));
        Deliver(op);
      },
      [this, op](const absl::Status& failed) {
        Finish(op, LogFailed(failed));
        GiveUpWaiting(failed);
      });
}

void ParamServer::Deliver(const OperationPtr& op) {
  op->Enter(Operation::Stage::kOnLanes);
  if (op->kind == FrameKind::kState) state_upload_.Begin(op->frame.header.step);
  if (Asks(op->kind)) {
    return shards_.EncodeReply(op, NextStep::To<&ParamServer::FinishOk>(this));
  }
  if (CarriesGradient(op->kind)) {
    push_sequence_ = ++sequence_;
    if (op->rules->bound == 0) {
      op->in_step = book_.NoteBegun(op->worker, op->incarnation, op->frame.header.step, sequence_);
    }
  }
  shards_.Apply(op, NextStep::To<&ParamServer::Delivered>(this));
}

void ParamServer::Delivered(const OperationPtr& op) {
  op->Enter(Operation::Stage::kDelivered);
  if (op->kind == FrameKind::kInit) return InitialValuesCame(op);
  if (op->kind == FrameKind::kState) return StateCame(op);
  if (op->rules->bound >= 0 && !op->in_step) op->taken();
  Operations released;
  absl::Status status;
  {
    MutexLock lock(&mu_);
    status = Note(op);
    if (status.ok() && book_.MayAnswer(op->frame.header.step, op->shards)) {
      released.push_back(op);
    } else if (status.ok()) {
      status = Wait(op);
    }
    for (OperationPtr& other : BookMoved()) released.push_back(std::move(other));
  }
  if (!status.ok()) Finish(op, status);
  AnswerReleased(std::move(released));
}

absl::Status ParamServer::Note(const OperationPtr& op) {
  const FrameHeader& header = op->frame.header;
  const auto worker = workers_.find(op->worker);
  if (worker == workers_.end() || worker->second.incarnation != op->incarnation) {
    return absl::FailedPreconditionError("the worker was evicted");
  }
  RECON_RETURN_IF_ERROR(book_.CheckCounts(op->worker, header.step, op->shards, op->outcomes));
  const size_t duplicates = op->shards.size() - op->parts_taken;
  duplicates_ += duplicates;
  instruments_->duplicates.Increment(static_cast<double>(duplicates));
  if (!head() && book_.gate().bound() != StalenessGate::kUnlimited) {
    options_.report_delivery(op->worker, op->incarnation, header.step, op->shards, header.push_parts);
  }
  const bool whole = book_.NoteParts(op->worker, op->incarnation, header.step, op->shards, header.push_parts,
                                     PartsHere(header, shards_.map()));
  if (!whole || op->parts_taken == 0) return absl::OkStatus();
  ++pushes_;
  ++worker->second.pushes;
  instruments_->pushes.Increment();
  if (op->staleness_known) {
    worker->second.AddStaleness(op->staleness_max);
    instruments_->staleness.Observe(static_cast<double>(op->staleness_max));
  }
  return absl::OkStatus();
}

absl::Status ParamServer::Wait(const OperationPtr& op) {
  if (draining_) return DrainingError();
  if (changing_rules_) return absl::UnavailableError("the policy is being changed; ask again");
  // It was on its way through the log when the epoch began: what it waits for may have been said before.
  if (op->frame.header.cluster_epoch != cluster_epoch_) {
    return absl::UnavailableError("a new cluster epoch has begun; ask again");
  }
  if (!log_status_.ok()) return LogFailed(log_status_);
  if (replies_.size() >= limits::kWaitingRepliesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("waiting replies: ", replies_.size(), " already"));
  }
  const absl::Duration patience = op->rules->local ? limits::kRoundReplyWaitMax : limits::kReplyWaitMax;
  replies_.Add(op, Now(), op->arrived + patience);
  return absl::OkStatus();
}

void ParamServer::InitialValuesCame(const OperationPtr& op) {
  std::function<void()> initialized;
  {
    MutexLock lock(&mu_);
    initialized = values_.Came(op->worker, op->shards);
  }
  if (initialized) initialized();
  Finish(op, absl::OkStatus());
}

Operations ParamServer::TakeReleased() {
  Operations released = replies_.TakeReleased();
  const absl::Time now = Now();
  for (const OperationPtr& op : released) {
    if (trace::On()) {
      trace::RecordPassive(trace::kWaitingForOthers, trace::NanosAt(op->waiting_since),
                           AboutFrame(op->frame));
    }
    const auto worker = workers_.find(op->worker);
    if (worker == workers_.end()) continue;
    worker->second.waiting_seconds += absl::ToDoubleSeconds(now - op->waiting_since);
  }
  return released;
}

void ParamServer::AnswerReleased(Operations ops) {
  if (ops.empty()) return;
  // Those who ask for the same shards side by side: one encoding serves them all. (It allocates even for
  // one.)
  if (ops.size() > 1) {
    std::stable_sort(ops.begin(), ops.end(), [](const OperationPtr& a, const OperationPtr& b) {
      return a->shards.front() < b->shards.front();
    });
  }
  // Behind the closing that released them, if there was one.
  if (log_.on() && ops.front()->rules->bound == 0) {
    log_.get()->Barrier([this, ops = std::move(ops)](const absl::Status& written) {
      for (const OperationPtr& op : ops) written.ok() ? Answer(op) : Finish(op, LogFailed(written));
    });
    return;
  }
  for (const OperationPtr& op : ops) Answer(op);
}

void ParamServer::Answer(const OperationPtr& op) {
  op->Enter(Operation::Stage::kAnswering);
  const auto encoded = [](const ByteChain& payload) { return payload.size() > 0; };
  if (op->kind != FrameKind::kPushPull ||
      std::all_of(op->reply_payloads.begin(), op->reply_payloads.end(), encoded)) {
    return FinishOk(op);
  }
  // Behind the closing of the step in every lane's queue: the reply has its update.
  shards_.EncodeReply(op, NextStep::To<&ParamServer::FinishOk>(this));
}

void ParamServer::AnswerDropped(const Operations& ops) {
  for (const OperationPtr& op : ops) {
    Finish(op,
           absl::AbortedError(absl::StrCat("step ", op->frame.header.step, " was closed without this push")));
  }
}

void ParamServer::FinishAll(const Operations& ops, const absl::Status& status) {
  for (const OperationPtr& op : ops) Finish(op, status);
}

void ParamServer::FinishOk(const OperationPtr& op) { Finish(op, absl::OkStatus()); }

void ParamServer::Finish(const OperationPtr& op, const absl::Status& status) {
  op->Enter(Operation::Stage::kDone);
  absl::StatusOr<ByteChain> reply = ByteChain();
  if (status.ok()) {
    Frame frame;
    frame.header = op->frame.header;
    frame.header.kind = static_cast<uint8_t>(FrameKind::kReply);
    frame.header.samples = op->mean_pushes.load(std::memory_order_relaxed);
    frame.parts = std::move(op->reply_parts);
    frame.payloads = std::move(op->reply_payloads);
    reply = EncodeFrame(std::move(frame));
    instruments_->bytes_out.Increment(static_cast<double>(reply->size()));
    const uint64_t cut = shards_.TakeCutValues();
    if (cut > 0) instruments_->cut_values.Increment(static_cast<double>(cut));
    if (!Asks(op->kind)) {
      instruments_->latency.Observe(absl::ToDoubleSeconds(Now() - op->arrived));
    }
  } else {
    reply = status;
    instruments_->refused.Increment();
  }
  if (trace::On() && CarriesGradient(op->kind)) {
    trace::RecordPassive(trace::kFrame, trace::NanosAt(op->arrived), AboutFrame(op->frame));
  }
  op->done(std::move(reply));
  MutexLock lock(&mu_);
  RECON_CHECK_GT(operations_, 0);
  --operations_;
  memory_.Release(op->worker, op->account, op->bytes);
  if (status.ok() && CarriesGradient(op->kind) && start_.NotePush(SinceBegan())) {
    LogInfo(
        "first push acknowledged {:.0f} ms after the server's start, {:.0f} ms without waiting for a worker",
        start_.push_ms(), start_.push_without_waiting_ms());
  }
}

void ParamServer::SayOverload(const absl::Status& status, absl::Time now) {
  {
    MutexLock lock(&mu_);
    if (!memory_.MaySayOverload(now)) return;
  }
  LogWarn("workers are told to wait: {}", status.message());
}

void ParamServer::GiveUpWaiting(const absl::Status& log_status) {
  Operations waiting;
  {
    MutexLock lock(&mu_);
    log_status_ = log_status;
    waiting = replies_.TakeAll();
  }
  FinishAll(waiting, LogFailed(log_status));
}

void ParamServer::Tick(absl::Time now) {
  Operations expired;
  {
    MutexLock lock(&mu_);
    expired = replies_.TakeExpired(now);
    replies_.SayTaken(now);
  }
  for (const OperationPtr& op : expired) {
    Finish(op, absl::DeadlineExceededError(absl::StrCat("step ", op->frame.header.step, " waited ",
                                                        absl::FormatDuration(now - op->arrived),
                                                        " for the other workers; ask again")));
  }
}

void ParamServer::BeginDrain() {
  Operations waiting;
  {
    MutexLock lock(&mu_);
    draining_ = true;
    waiting = replies_.TakeAll();
  }
  FinishAll(waiting, DrainingError());
}

bool ParamServer::WaitUntilIdle(absl::Duration timeout) {
  MutexLock lock(&mu_);
  return mu_.AwaitFor(timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return operations_ == 0; });
}

ParamServer::Stats ParamServer::GetStats() const {
  MutexLock lock(&mu_);
  Stats stats;
  stats.pushes = pushes_;
  stats.updates = shards_.updates();
  stats.duplicates = duplicates_;
  stats.sequence = sequence_;
  stats.frontier_step = book_.gate().frontier();
  stats.non_finite = shards_.non_finite();
  stats.unlike_rates = shards_.unlike_rates();
  stats.recover_ms = start_.push_ms();
  stats.first_push_ms = start_.push_ms() == 0 ? 0 : start_.push_without_waiting_ms();
  for (const auto& [id, worker] : workers_) {
    WorkerStats& out = stats.workers[id];
    out.pushes = worker.pushes;
    out.active = book_.gate().active(id);
    out.next_step = book_.gate().next_step(id);
    out.staleness_pushes = worker.staleness_pushes;
    out.staleness_mean = worker.staleness_mean();
    out.staleness_max = worker.staleness_max;
    out.staleness_counts.assign(worker.staleness_counts.begin(), worker.staleness_counts.end());
    out.waiting_seconds = worker.waiting_seconds;
    out.late_steps = book_.late_steps(id);
  }
  return stats;
}

}  // namespace recon
