#include "worker/encode/codec_policy.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
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
    spec = CodecSpec();  // FP16: there is nothing to gain.
  }
  return spec;
}

EncodePlan CodecPolicy::PlanFor(double data_epochs, bool flush, absl::Time now) {
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
  if (last_flush_ == absl::InfinitePast()) last_flush_ = now;
  plan.flush = keeps_back && (flush || now - last_flush_ >= options_.flush_period);
  if (plan.flush || !keeps_back) last_flush_ = now;
  return plan;
}

CodecId CodecPolicy::pull_codec() const {
  MutexLock lock(&mu_);
  return options_.pull_auto && automatic_ ? controller_.rung().pull : options_.pull_codec;
}

void CodecPolicy::NoteCompute(absl::Time start, absl::Duration compute, absl::Duration stall) {
  MutexLock lock(&mu_);
  if (!automatic_) return;
  window_start_ = std::min(window_start_, start);
  window_.compute_seconds += absl::ToDoubleSeconds(compute);
  window_.stall_seconds += absl::ToDoubleSeconds(stall);
}

void CodecPolicy::NotePush(absl::Time end, absl::Duration encode, absl::Duration exchange, uint64_t bytes,
                           const EncodedPush& push) {
  MutexLock lock(&mu_);
  if (!automatic_) return;
  if (skip_ > 0) {
    --skip_;
    window_ = CodecController::Window();
    window_start_ = end;
    return;
  }
  ++window_.steps;
  window_.encode_seconds += absl::ToDoubleSeconds(encode);
  window_.exchange_seconds += absl::ToDoubleSeconds(exchange);
  window_.bytes += bytes;
  window_.residual_ratio = push.norm > 0 ? push.residual_norm / push.norm : 0;
  if (window_.steps < kWindowSteps || end - window_start_ < kWindowTime) return;
  window_.seconds = absl::ToDoubleSeconds(end - window_start_);
  if (controller_.Observe(window_)) {
    spdlog::info("codec {}, parameters in {}: {}", controller_.rung().push.ToString(),
                 CodecName(controller_.rung().pull), controller_.reason());
    skip_ = limits::kCodecChangeSkip;
  }
  window_ = CodecController::Window();
  window_start_ = end;
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

absl::Time CodecPolicy::last_flush() const {
  MutexLock lock(&mu_);
  return last_flush_;
}

}  // namespace recon
