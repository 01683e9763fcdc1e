#include "worker/runtime/comm_pipeline.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "worker/runtime/backoff.h"
#include "worker/runtime/frames.h"

namespace recon {
namespace {

// Longer than the server lets a reply wait.
const absl::Duration kFrameDeadline = limits::kReplyWaitMax + absl::Seconds(5);

double Norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

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

}  // namespace

CommPipeline::CommPipeline(const Options& options, const ParamLayout* layout, ParamClient* client,
                           Session* session, Metrics* metrics)
    : options_(options),
      layout_(layout),
      client_(client),
      session_(session),
      bytes_(metrics->Counter("recon_worker_pushed_bytes_total", "Payload bytes of gradients sent")),
      resent_(metrics->Counter("recon_worker_resent_pushes_total", "Pushes sent again after an error")),
      dropped_(
          metrics->Counter("recon_worker_dropped_pushes_total", "Pushes whose step was closed without them")),
      saturated_(
          metrics->Counter("recon_worker_saturated_values_total", "Values cut to the codec's largest")),
      seconds_(metrics->Histogram("recon_worker_push_seconds", "From a push's start to its reply",
                                  {.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10})) {
  for (int i = 0; i < options_.depth; ++i) threads_.emplace_back([this] { Run(); });
}

CommPipeline::~CommPipeline() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

std::vector<float> CommPipeline::TakeBuffer() {
  MutexLock lock(&mu_);
  if (buffers_.empty()) return std::vector<float>(layout_->params());
  std::vector<float> buffer = std::move(buffers_.back());
  buffers_.pop_back();
  return buffer;
}

void CommPipeline::Submit(Push push) {
  MutexLock lock(&mu_);
  ++under_way_;
  queue_.push_back(std::move(push));
}

void CommPipeline::WaitUntilBelow(int pushes) {
  MutexLock lock(&mu_);
  mu_.Await([this, pushes] { return under_way_ < pushes; });
}

std::vector<Frame> CommPipeline::TakeReplies() {
  MutexLock lock(&mu_);
  return std::exchange(replies_, {});
}

void CommPipeline::Run() {
  while (true) {
    Push push;
    {
      MutexLock lock(&mu_);
      mu_.Await([this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      push = std::move(queue_.front());
      queue_.pop_front();
    }
    const absl::Time start = Now();
    std::vector<Frame> replies;
    const absl::StatusOr<bool> applied = PushUntilDone(push, &replies);
    if (!applied.ok()) session_->Fail(applied.status());
    session_->Acknowledge(push.step);
    seconds_.Observe(absl::ToDoubleSeconds(Now() - start));
    push.done(applied.ok() && *applied);
    MutexLock lock(&mu_);
    for (Frame& reply : replies) replies_.push_back(std::move(reply));
    buffers_.push_back(std::move(push.gradient));
    --under_way_;
  }
}

absl::StatusOr<bool> CommPipeline::PushUntilDone(const Push& push, std::vector<Frame>* replies) {
  std::vector<EncodedShard> shards;
  const EncodeStats stats = EncodeShards(*layout_, options_.push_codec, push.gradient.data(), &shards);
  if (stats.non_finite > 0) {
    return absl::OutOfRangeError(
        absl::StrCat("step ", push.step, ": ", stats.non_finite,
                     " gradient values are infinite or not a number; is the learning rate too high?"));
  }
  session_->counters()->saturated += stats.saturated;
  saturated_.Increment(static_cast<double>(stats.saturated));
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].version = push.base_versions[i];
    bytes_.Increment(static_cast<double>(shards[i].payload.size()));
  }
  FrameHeader header;
  header.reply_codec = static_cast<uint8_t>(options_.pull_codec);
  header.step = push.step;
  header.order_key = push.order_key;
  header.samples = push.samples;
  header.gradient_norm = static_cast<float>(Norm(push.gradient));
  Backoff backoff;
  while (true) {
    const Session::Standing standing = session_->standing();
    std::vector<absl::StatusOr<Frame>> results = client_->CallAll(
        FrameKind::kPushPull, FramesFor(*layout_, header, standing.identity, shards), kFrameDeadline);
    const absl::Status worst = Worst(results);
    if (worst.ok()) {
      for (auto& result : results) replies->push_back(*std::move(result));
      return true;
    }
    if (absl::IsAborted(worst)) {
      dropped_.Increment();
      spdlog::warn("push dropped: {}", worst.message());
      return false;
    }
    resent_.Increment();
    RECON_RETURN_IF_ERROR(session_->Recover(worst, standing, &backoff));
  }
}

absl::StatusOr<std::vector<Frame>> CommPipeline::PullAll() {
  FrameHeader header;
  header.reply_codec = static_cast<uint8_t>(CodecId::kFp32);
  Backoff backoff;
  while (true) {
    const Session::Standing standing = session_->standing();
    std::vector<absl::StatusOr<Frame>> results = client_->CallAll(
        FrameKind::kPull,
        FramesFor(*layout_, header, standing.identity, std::vector<EncodedShard>(layout_->shard_count())),
        kFrameDeadline);
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

absl::Status CommPipeline::SendInitialValues(const std::vector<float>& values) {
  std::vector<EncodedShard> shards;
  if (EncodeShards(*layout_, CodecId::kFp32, values.data(), &shards).non_finite > 0) {
    return absl::InvalidArgumentError("an initial value is infinite or not a number");
  }
  const WorkerIdentity identity = session_->standing().identity;
  return Worst(client_->CallAll(FrameKind::kInit, FramesFor(*layout_, FrameHeader(), identity, shards),
                                kFrameDeadline));
}

}  // namespace recon
