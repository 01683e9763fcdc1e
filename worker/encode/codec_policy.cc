#include "worker/encode/codec_policy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace recon {
namespace {

// A window is long enough for a rate on a machine that others use, too.
constexpr int kWindowSteps = 12;
constexpr absl::Duration kWindowTime = absl::Milliseconds(600);
constexpr double kSmallShare = 0.01;
constexpr double kWarmupRatio = 0.25;

double WarmRatio(double ratio, double progress) {
  if (progress >= 1 || ratio >= kWarmupRatio) return ratio;
  return kWarmupRatio * std::pow(ratio / kWarmupRatio, std::max(0.0, progress));
}

}  // namespace

CodecPolicy::CodecPolicy(const Options& options, const ParamLayout* layout)
    : options_(options), layout_(layout) {
  std::vector<uint64_t> params(layout->groups().size());
  for (const ShardPlacement& shard : layout->shards()) params[shard.group] += shard.size;
  for (size_t group = 0; group < params.size(); ++group) {
    choices_.push_back(options_.rules.For(layout->groups()[group]));
    automatic_ |= choices_.back().automatic;
    small_.push_back(static_cast<double>(params[group]) <
                     kSmallShare * static_cast<double>(layout->params()));
  }
}

CodecSpec CodecPolicy::SpecFor(uint32_t group) const {
  const CodecRules::Choice& choice = choices_[group];
  if (!choice.automatic) return choice.spec;
  CodecSpec spec = controller_.rung().push;
  if (spec.sparse() && small_[group]) {
    spec = CodecSpec();  // There is nothing to gain.
    spec.kind = fp16_accepted_ ? CodecKind::kFp16 : CodecKind::kFp32;
  }
  return spec;
}

absl::Status CodecPolicy::Restrict(uint32_t refused_codecs) {
  for (size_t group = 0; group < choices_.size(); ++group) {
    if (choices_[group].automatic) continue;
    const CodecId codec = choices_[group].spec.wire_codec();
    if ((refused_codecs >> static_cast<int>(codec) & 1) == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("--codec ", choices_[group].spec.ToString(), " of group ",
                                                   layout_->groups()[group], ": the server does not accept ",
                                                   CodecName(codec), " (--accept-codecs)"));
  }
  MutexLock lock(&mu_);
  controller_ = CodecController(refused_codecs);
  fp16_accepted_ = (refused_codecs >> static_cast<int>(CodecId::kFp16) & 1) == 0;
  return absl::OkStatus();
}

EncodePlan CodecPolicy::PlanFor(double data_epochs, bool flush_all, absl::Time now) {
  MutexLock lock(&mu_);
  EncodePlan plan;
  bool keeps_back = false;
  for (uint32_t group = 0; group < choices_.size(); ++group) {
    CodecSpec spec = SpecFor(group);
    if (spec.sparse() && options_.warmup_data_epochs > 0) {
      spec.ratio = WarmRatio(spec.ratio, data_epochs / options_.warmup_data_epochs);
    }
    keeps_back |= spec.sparse() || spec.kind == CodecKind::kInt8;
    plan.groups.push_back(spec);
  }
  if (last_flush_ == absl::InfinitePast() || !keeps_back) last_flush_ = now;
  if (!keeps_back || !options_.feedback) return plan;
  const uint32_t shards = layout_->shard_count();
  // One shard after the other, so that all had their turn in a period.
  const double due = absl::FDivDuration(now - last_flush_, options_.flush_period) * shards;
  plan.flush_first = next_flush_;
  plan.flush_count = flush_all ? shards : static_cast<uint32_t>(std::min<double>(due, shards));
  next_flush_ = (next_flush_ + plan.flush_count) % shards;
  if (plan.flush_count > 0) last_flush_ = now;
  return plan;
}

CodecId CodecPolicy::pull_codec() const {
  MutexLock lock(&mu_);
  return options_.pull_auto && automatic_ ? controller_.rung().pull : options_.pull_codec;
}

void CodecPolicy::NoteCompute(absl::Time start, absl::Duration compute, absl::Duration stall) {
  MutexLock lock(&mu_);
  if (!automatic_) return;
  if (window_start_ == absl::InfiniteFuture()) StartWindow(start);
  window_.compute_seconds += absl::ToDoubleSeconds(compute);
  window_.stall_seconds += absl::ToDoubleSeconds(stall);
}

void CodecPolicy::NotePush(absl::Time end, const Exchange& exchange, const EncodedPush& push) {
  MutexLock lock(&mu_);
  if (!automatic_) return;
  if (skip_ > 0) {
    --skip_;
    StartWindow(end);
    return;
  }
  ++window_.steps;
  window_.encode_seconds += absl::ToDoubleSeconds(exchange.encode);
  window_.exchange_seconds += absl::ToDoubleSeconds(exchange.exchange);
  window_.push_bytes += exchange.push_bytes;
  window_.pull_bytes += exchange.pull_bytes;
  window_.dense_pull_bytes += EncodedBytes(controller_.rung().pull, layout_->params());
  window_.workers = exchange.workers;
  window_.residual_ratio = push.norm > 0 ? push.residual_norm / push.norm : 0;
  if (window_.steps < kWindowSteps || end - window_start_ < kWindowTime) return;
  window_.seconds = absl::ToDoubleSeconds(end - window_start_);
  const CpuUsage cpu = ProcessCpuUsage();
  window_.cpu_seconds = cpu.used_seconds - cpu_before_.used_seconds;
  window_.cpu_wait_seconds = std::max(0.0, cpu.waited_seconds - cpu_before_.waited_seconds);
  if (controller_.Observe(window_)) {
    spdlog::info("codec {}, parameters in {}: {}", controller_.rung().push.ToString(),
                 CodecName(controller_.rung().pull), controller_.reason());
    skip_ = options_.depth + 2;
  }
  StartWindow(end);
}

void CodecPolicy::StartWindow(absl::Time start) {
  window_ = CodecController::Window();
  window_start_ = start;
  cpu_before_ = ProcessCpuUsage();
}

std::string CodecPolicy::Describe() const {
  MutexLock lock(&mu_);
  if (!automatic_) return options_.rules.text();
  std::string groups;
  for (uint32_t group = 0; group < choices_.size(); ++group) {
    absl::StrAppend(&groups, groups.empty() ? "" : ",", layout_->groups()[group], "=",
                    SpecFor(group).ToString());
  }
  return absl::StrCat(options_.rules.text(), ": ", groups);
}

std::string CodecPolicy::Reason() const {
  MutexLock lock(&mu_);
  return automatic_ ? controller_.reason() : "";
}

absl::Duration CodecPolicy::residual_age(absl::Time now) const {
  MutexLock lock(&mu_);
  if (last_flush_ == absl::InfinitePast()) return absl::ZeroDuration();
  // The next shard's turn was a round ago.
  return now - last_flush_ + options_.flush_period * (layout_->shard_count() - 1) / layout_->shard_count();
}

}  // namespace recon
