#include "worker/comm/comm_pipeline.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/backoff.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/codec/half_codec.h"
#include "common/tensor/page.h"
#include "common/trace/recorder.h"
#include "common/trace/span_names.h"
#include "common/transport/send_window.h"
#include "worker/comm/frames.h"
#include "worker/encode/lost_values.h"

namespace recon {
namespace {

// OK if all are; else the error that decides what to do, the gravest first.
absl::Status Worst(const std::vector<absl::StatusOr<Frame>>& replies) {
  absl::Status worst;
  for (const auto& reply : replies) {
    if (reply.ok()) continue;
    const absl::Status& status = reply.status();
    const bool passing = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (worst.ok() || !passing) worst = status;
  }
  return worst;
}

// Where no frame counts and not all are refused for good: the error of one that was not decided. All of them
// will be by the next try.
absl::Status Undecided(const std::vector<absl::StatusOr<Frame>>& results) {
  absl::Status undecided;
  for (const auto& result : results) {
    if (result.ok()) return absl::OkStatus();
    if (!absl::IsAborted(result.status()) && undecided.ok()) undecided = result.status();
  }
  return undecided;
}

}  // namespace

CommPipeline::CommPipeline(int depth, const ParamLayout* layout, GradientSpace* space, CodecPolicy* policy,
                           ParamClient* client, Session* session, Metrics* metrics)
    : layout_(layout),
      space_(space),
      policy_(policy),
      client_(client),
      session_(session),
      bytes_(metrics->Counter("recon_worker_pushed_bytes_total", "Payload bytes of gradients sent")),
      resent_(metrics->Counter("recon_worker_resent_pushes_total", "Pushes sent again after an error")),
      dropped_(metrics->Counter("recon_worker_dropped_pushes_total",
                                "Pushes whose step was closed without them, or whose policy is no more")),
      late_(metrics->Counter("recon_worker_late_pushes_total",
                             "Pushes that were sent in a later step, for theirs was closed without them")),
      saturated_(
          metrics->Counter("recon_worker_saturated_values_total", "Values cut to the codec's largest")),
      underflown_(metrics->Counter("recon_worker_underflown_values_total",
                                   "Values other than 0 that became 0 in the codec, and are not kept back")),
      flushes_(metrics->Counter("recon_worker_residual_flushes_total",
                                "Pushes that sent a shard's whole residual")),
      bytes_per_parameter_(metrics->Gauge("recon_worker_bytes_per_parameter",
                                          "Payload bytes of the last push, by parameters")),
      residual_(metrics->Gauge("recon_worker_residual_norm", "L2 norm of what the encoder keeps back")),
      seconds_(metrics->Histogram("recon_worker_push_seconds", "From a push's sending to its reply",
                                  {.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10})),
      encode_seconds_(metrics->Histogram("recon_worker_encode_seconds", "Encoding time of a push",
                                         {.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5})),
      keep_reply_([this](Frame reply) {
        MutexLock lock(&mu_);
        replies_.push_back(std::move(reply));
      }) {
  for (int i = 0; i < depth; ++i) threads_.emplace_back([this] { Run(); });
}

CommPipeline::~CommPipeline() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  MutexLock lock(&mu_);
  RECON_CHECK_EQ(under_way_, 0, "a push has not come to its end, and nobody works on it");
}

void CommPipeline::SetEncoder(std::unique_ptr<GradientEncoder> encoder) {
  RECON_CHECK(encoder != nullptr);
  MutexLock lock(&mu_);
  RECON_CHECK_EQ(under_way_, 0, "the encoder is replaced while a push is under way");
  encoder_ = std::move(encoder);
}

absl::StatusOr<std::unique_ptr<GradientBuffer>> CommPipeline::TakeBuffer() {
  {
    MutexLock lock(&mu_);
    if (!buffers_.empty()) {
      std::unique_ptr<GradientBuffer> buffer = std::move(buffers_.back());
      buffers_.pop_back();
      return buffer;
    }
  }
  return space_->NewGradientBuffer();
}

void CommPipeline::ReturnBuffer(std::unique_ptr<GradientBuffer> buffer) {
  RECON_CHECK(buffer != nullptr);
  MutexLock lock(&mu_);
  buffers_.push_back(std::move(buffer));
}

void CommPipeline::Submit(Push push) {
  RECON_CHECK(push.done != nullptr && push.gradient != nullptr);
  RECON_CHECK_EQ(push.base_versions.size(), layout_->shard_count());
  RECON_CHECK(push.shard_samples.empty() || push.shard_samples.size() == layout_->shard_count());
  RECON_CHECK(push.plan.due.empty() || push.plan.due.size() == layout_->shard_count());
  MutexLock lock(&mu_);
  RECON_CHECK(encoder_ != nullptr && !stopping_);
  ++under_way_;
  queue_.push_back(std::move(push));
}

void CommPipeline::WaitUntilBelow(int pushes) {
  MutexLock lock(&mu_);
  mu_.Await([this, pushes]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return under_way_ < pushes; });
}

bool CommPipeline::WaitUntilBelowOrReplies(int pushes) {
  MutexLock lock(&mu_);
  mu_.Await([this, pushes]()
                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return under_way_ < pushes || !replies_.empty(); });
  return under_way_ < pushes;
}

std::vector<Frame> CommPipeline::TakeReplies() {
  MutexLock lock(&mu_);
  return std::exchange(replies_, {});
}

bool CommPipeline::TakeEncoded(Outgoing* out) {
  MutexLock in_order(&encoding_);
  Push& push = out->push;
  GradientEncoder* encoder = nullptr;
  {
    MutexLock lock(&mu_);
    mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return false;
    push = std::move(queue_.front());
    queue_.pop_front();
    encoder = encoder_.get();
  }
  push.plan.memory = [this](uint32_t shard, size_t bytes) { return client_->PayloadMemory(shard, bytes); };
  if (push.progress != nullptr) {
    out->encoded = EncodeAsItComes(encoder, out);
  } else {
    const absl::Time start = Now();
    const trace::Span span(trace::kEncoding, trace::About::Push(session_->worker(), push.step));
    out->encoded = encoder->Encode(push.gradient.get(), push.plan);
    push.encode_time = Now() - start;
  }
  encode_seconds_.Observe(absl::ToDoubleSeconds(push.encode_time));
  if (out->encoded.ok()) {
    residual_.Set(out->encoded->residual_norm);
    session_->counters()->residual_norm = out->encoded->residual_norm;
    if (!push.plan.flush.empty()) flushes_.Increment();
  }
  MutexLock lock(&mu_);
  buffers_.push_back(std::move(push.gradient));
  return true;
}

absl::StatusOr<EncodedPush> CommPipeline::EncodeAsItComes(GradientEncoder* encoder, Outgoing* out) {
  Push& push = out->push;
  out->standing = session_->standing();
  if (StillWanted(push)) out->exchange.emplace(client_, FrameKind::kPushPull, keep_reply_);
  // About a frame for each server.
  const std::vector<uint32_t>& servers = client_->server_of_shard();
  const size_t server_count = servers.empty() ? 1 : *std::max_element(servers.begin(), servers.end()) + 1;
  const size_t reply_bytes = EncodedBytes(policy_->pull_codec(), kPageParams);
  const uint64_t params_at_once = server_count * FrameBytesFor(server_count) * kPageParams / reply_bytes;
  EncodedPush whole;
  whole.shards.resize(layout_->shard_count());
  EncodePlan plan = push.plan;
  plan.more_follows = true;
  while (plan.more_follows) {
    const GradientProgress::Next next = push.progress->Take(params_at_once, &plan.due);
    if (next == GradientProgress::Next::kAbandoned) {
      out->exchange.reset();
      out->abandoned = true;
      return absl::CancelledError("the gradient was not computed to its end");
    }
    plan.more_follows = next == GradientProgress::Next::kSome;
    const absl::Time start = Now();
    absl::StatusOr<EncodedPush> encoded;
    {
      const trace::Span span(trace::kEncoding, trace::About::Push(session_->worker(), push.step));
      encoded = encoder->Encode(push.gradient.get(), plan);
    }
    RECON_ASSIGN_OR_RETURN(EncodedPush some, std::move(encoded));
    push.encode_time += Now() - start;
    RECON_CHECK_EQ(some.shards.size(), layout_->shard_count());
    whole.stats.Add(some.stats);
    whole.norm = std::hypot(whole.norm, some.norm);
    whole.residual_norm = some.residual_norm;
    if (whole.stats.non_finite > 0) out->exchange.reset();
    Label(push, out->standing, &some.shards);
    if (out->exchange) {
      FrameHeader header = HeaderOf(push, /*gradient_norm=*/0);
      header.push_parts = layout_->shard_count();
      out->exchange->Send(FramesFor(*layout_, header, out->standing.identity, some.shards, servers));
    }
    for (uint32_t i = 0; i < some.shards.size(); ++i) {
      if (plan.Has(i)) whole.shards[i] = std::move(some.shards[i]);
    }
  }
  return whole;
}

void CommPipeline::Run() {
  pthread_setname_np(pthread_self(), "push");
  while (true) {
    Outgoing out;
    if (!TakeEncoded(&out)) return;
    const absl::StatusOr<bool> applied =
        out.encoded.ok() ? PushUntilDone(&out) : absl::StatusOr<bool>(out.encoded.status());
    if (!applied.ok() && !out.abandoned) session_->Fail(applied.status());
    session_->Acknowledge(out.push.step);
    out.push.done(applied.ok() && *applied);
    MutexLock lock(&mu_);
    RECON_CHECK_GT(under_way_, 0);
    --under_way_;
  }
}

FrameHeader CommPipeline::HeaderOf(const Push& push, double gradient_norm) const {
  FrameHeader header;
  header.reply_codec = static_cast<uint8_t>(policy_->pull_codec());
  header.step = push.step;
  header.order_key = push.order_key;
  header.samples = push.weight > 0 ? push.weight : push.samples;
  header.gradient_norm = static_cast<float>(gradient_norm);
  return header;
}

void CommPipeline::Label(const Push& push, const Session::Standing& standing,
                         std::vector<EncodedShard>* shards) const {
  // A restarted server counts versions from its snapshot: the old numbers name other values.
  const bool other_versions = standing.identity.cluster_epoch() != push.base_epoch;
  for (size_t i = 0; i < shards->size(); ++i) {
    EncodedShard& shard = (*shards)[i];
    shard.version = other_versions ? 0 : push.base_versions[i];
    if (!push.shard_samples.empty()) shard.samples = push.shard_samples[i];
    if (!push.learning_rates.empty()) {
      shard.learning_rate = push.learning_rates[layout_->shards()[i].group];
    }
  }
}

bool CommPipeline::StillWanted(const Push& push) const {
  const std::shared_ptr<const JobConfig> job = session_->job();
  return job->history() == push.history && job->has_local() == push.local &&
         (job->zeros_change_nothing() || !push.plan.zeros_change_nothing);
}

void CommPipeline::NoteDropped(const Push& push, absl::string_view why) {
  dropped_.Increment();
  LogWarn("push of step {} dropped: {}", push.step, why);
}

void CommPipeline::NoteLost(const EncodedPush& encoded) {
  session_->counters()->saturated += encoded.stats.saturated;
  session_->counters()->underflown += encoded.stats.underflown;
  saturated_.Increment(static_cast<double>(encoded.stats.saturated));
  underflown_.Increment(static_cast<double>(encoded.stats.underflown));
  if (encoded.stats.lost() == 0 || said_what_is_lost_) return;
  const std::string lost = DescribeLost(*layout_, encoded);
  if (lost.empty() || said_what_is_lost_.exchange(true)) return;
  LogWarn("{}", lost);
}

std::vector<absl::StatusOr<Frame>> CommPipeline::AwaitReplies(ParamClient::Exchange* exchange,
                                                              absl::Duration deadline) {
  return exchange->Await(session_->fatal().ok() ? deadline : absl::ZeroDuration(), absl::InfiniteDuration());
}

std::vector<absl::StatusOr<Frame>> CommPipeline::CallAll(FrameKind kind, const FrameHeader& header,
                                                         const WorkerIdentity& identity,
                                                         const std::vector<EncodedShard>& shards) {
  const std::function<void(Frame)> none;
  ParamClient::Exchange exchange(client_, kind, none);
  exchange.Send(FramesFor(*layout_, header, identity, shards, client_->server_of_shard()));
  return AwaitReplies(&exchange, FrameDeadline(EncodedBytes(CodecId::kFp32, layout_->params())));
}

bool CommPipeline::MoveToLaterStep(const std::vector<absl::StatusOr<Frame>>& results, Push* push) {
  const bool none_counts = std::all_of(results.begin(), results.end(),
                                       [](const auto& result) { return absl::IsAborted(result.status()); });
  // A part of the parameters has its turn in some steps only.
  if (!none_counts || session_->job()->bound() < 0) return false;
  if (!push->plan.due.empty() && !session_->job()->means()) return false;
  if (push->counts_no_more && push->counts_no_more()) return false;
  const absl::StatusOr<uint64_t> step = session_->Rejoin(push->step);
  if (!step.ok()) {
    LogInfo("{}", step.status().message());
    return false;
  }
  LogInfo("step {} did not wait for this worker's push, which goes with step {}", push->step, *step);
  push->step = *step;
  return true;
}

absl::StatusOr<bool> CommPipeline::PushUntilDone(Outgoing* out) {
  Push& push = out->push;
  const EncodedPush& encoded = *out->encoded;
  if (encoded.stats.non_finite > 0) {
    const std::string why =
        absl::StrCat("step ", push.step, ": ", encoded.stats.non_finite,
                     " gradient values are infinite or not a number; is the learning rate too high?");
    if (!session_->job()->rolls_back()) return absl::OutOfRangeError(why);
    if (session_->job()->history() == push.history) session_->NoteDivergence(why);
    return false;
  }
  NoteLost(encoded);
  std::vector<EncodedShard> shards = std::move(out->encoded->shards);
  CodecPolicy::Exchange exchange;
  uint64_t params = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (!shards[i].left_out) params += layout_->shards()[i].size;
    exchange.push_bytes += shards[i].payload.size();
  }
  exchange.share = static_cast<double>(params) / static_cast<double>(layout_->params());
  exchange.encode = push.encode_time;
  bytes_.Increment(static_cast<double>(exchange.push_bytes));
  bytes_per_parameter_.Set(static_cast<double>(exchange.push_bytes) / static_cast<double>(layout_->params()));
  FrameHeader header = HeaderOf(push, encoded.gradient_norm);
  const absl::Duration deadline = FrameDeadline(
      exchange.push_bytes + EncodedBytes(static_cast<CodecId>(header.reply_codec), layout_->params()),
      push.local ? limits::kRoundReplyWaitMax : limits::kReplyWaitMax);
  const uint64_t first_step = push.step;
  Backoff backoff;
  while (true) {
    const absl::Time start = Now();
    if (!out->exchange) {
      RECON_RETURN_IF_ERROR(session_->fatal());
      out->standing = session_->standing();
      if (!StillWanted(push)) {
        NoteDropped(push, "the job was rolled back, or its policy is another");
        return false;
      }
      Label(push, out->standing, &shards);
      out->exchange.emplace(client_, FrameKind::kPushPull, keep_reply_);
      out->exchange->Send(
          FramesFor(*layout_, header, out->standing.identity, shards, client_->server_of_shard()));
    }
    const std::vector<absl::StatusOr<Frame>> results = AwaitReplies(&*out->exchange, deadline);
    out->exchange.reset();
    const absl::Status worst = Worst(results);
    if (worst.ok()) {
      for (const auto& result : results) exchange.pull_bytes += result->header.payload_bytes;
      exchange.exchange = Now() - start;
      seconds_.Observe(absl::ToDoubleSeconds(exchange.exchange));
      policy_->NotePush(exchange, encoded);
      last_was_late_ = push.step != first_step;
      return true;
    }
    const absl::Status undecided = Undecided(results);
    if (absl::IsAborted(worst) && undecided.ok()) {
      if (MoveToLaterStep(results, &push)) {
        late_.Increment();
        header.step = push.step;
        continue;
      }
      last_was_late_ = true;
      NoteDropped(push, worst.message());
      return false;
    }
    resent_.Increment();
    RECON_RETURN_IF_ERROR(session_->Recover(undecided.ok() ? worst : undecided, out->standing, &backoff));
  }
}

absl::StatusOr<std::vector<Frame>> CommPipeline::PullAll(const Known& known) {
  FrameHeader header;
  header.reply_codec = static_cast<uint8_t>(CodecId::kFp32);
  Backoff backoff;
  while (true) {
    const Session::Standing standing = session_->standing();
    std::vector<EncodedShard> shards(layout_->shard_count());
    if (standing.identity.cluster_epoch() == known.cluster_epoch) {
      for (size_t i = 0; i < known.versions.size(); ++i) shards[i].version = known.versions[i];
    }
    for (size_t i = 0; i < known.hashes.size(); ++i) {
      shards[i].codec = known.hashes[i].codec;
      shards[i].payload = known.hashes[i].payload;
    }
    std::vector<absl::StatusOr<Frame>> results = CallAll(FrameKind::kPull, header, standing.identity, shards);
    const absl::Status worst = Worst(results);
    if (!worst.ok()) {
      RECON_RETURN_IF_ERROR(session_->Recover(worst, standing, &backoff));
      continue;
    }
    std::vector<Frame> replies;
    for (auto& result : results) replies.push_back(*std::move(result));
    return replies;
  }
}

absl::StatusOr<std::vector<Frame>> CommPipeline::PullMean(uint64_t step) {
  FrameHeader header;
  header.step = step;
  header.reply_codec = static_cast<uint8_t>(policy_->pull_codec());
  std::vector<EncodedShard> shards(layout_->shard_count());
  for (uint32_t i = 0; i < shards.size(); ++i) shards[i].left_out = HoldsState(*layout_, i);
  Backoff backoff;
  while (true) {
    const Session::Standing standing = session_->standing();
    std::vector<absl::StatusOr<Frame>> results =
        CallAll(FrameKind::kPullMean, header, standing.identity, shards);
    const absl::Status worst = Worst(results);
    if (!worst.ok()) {
      RECON_RETURN_IF_ERROR(session_->Recover(worst, standing, &backoff));
      continue;
    }
    std::vector<Frame> replies;
    for (auto& result : results) replies.push_back(*std::move(result));
    return replies;
  }
}

absl::Status CommPipeline::SendState(std::vector<float> values, uint64_t step, uint64_t upload) {
  if (CountNonFinite(values.data(), values.size()) > 0) {
    return absl::InvalidArgumentError("a value of the worker's state is infinite or not a number");
  }
  FrameHeader header;
  header.step = step;
  header.order_key = upload;
  std::vector<EncodedShard> shards = PlainShards(*layout_, std::move(values));
  for (uint32_t i = 0; i < shards.size(); ++i) shards[i].left_out = !HoldsState(*layout_, i);
  const Session::Standing standing = session_->standing();
  Backoff backoff;
  while (true) {
    std::vector<absl::StatusOr<Frame>> results =
        CallAll(FrameKind::kState, header, standing.identity, shards);
    // What came before need not come again.
    results.erase(std::remove_if(results.begin(), results.end(),
                                 [](const auto& result) { return absl::IsAlreadyExists(result.status()); }),
                  results.end());
    const absl::Status worst = Worst(results);
    // A server may not have heard of the question yet; or it is away, and what it had of the state with it.
    if (!absl::IsUnavailable(worst) || session_->state().wanted() != upload) return worst;
    RECON_RETURN_IF_ERROR(session_->Recover(worst, standing, &backoff));
  }
}

absl::Status CommPipeline::SendInitialValues(std::vector<float> values) {
  if (CountNonFinite(values.data(), values.size()) > 0) {
    return absl::InvalidArgumentError("an initial value is infinite or not a number");
  }
  const std::vector<EncodedShard> shards = PlainShards(*layout_, std::move(values));
  const absl::Status worst =
      Worst(CallAll(FrameKind::kInit, FrameHeader(), session_->standing().identity, shards));
  // What ended the session is why there was no answer.
  return worst.ok() || session_->fatal().ok() ? worst : session_->fatal();
}

}  // namespace recon
