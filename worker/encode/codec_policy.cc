#include "worker/encode/codec_policy.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/cpu_usage.h"
#include "common/base/log.h"
#include "common/codec/codec.h"

namespace recon {
namespace {

constexpr double kSmallShare = 0.01;
constexpr double kWarmupRatio = 0.25;

CodecSpec Whole() {
  CodecSpec spec;
  spec.kind = CodecKind::kFp32;
  return spec;
}

double WarmRatio(double ratio, double progress) {
  if (progress >= 1 || ratio >= kWarmupRatio) return ratio;
  return kWarmupRatio * std::pow(ratio / kWarmupRatio, std::max(0.0, progress));
}

}  // namespace

CodecPolicy::CodecPolicy(const Options& options, const ParamLayout* layout)
    : options_(options), layout_(layout), owes_flush_(layout->shard_count()) {
  std::vector<uint64_t> params(layout->groups().size());
  for (const ShardPlacement& shard : layout->shards()) params[shard.group] += shard.size;
  for (size_t group = 0; group < params.size(); ++group) {
    if (layout->averaged(static_cast<uint32_t>(group))) {
      choices_.push_back({/*automatic=*/false, Whole()});
    } else {
      choices_.push_back(options_.rules.For(layout->groups()[group]));
    }
    automatic_ |= choices_.back().automatic;
    small_.push_back(static_cast<double>(params[group]) <
                     kSmallShare * static_cast<double>(layout->params()));
  }
}

CodecSpec CodecPolicy::SpecFor(uint32_t group) const {
  const CodecRules::Choice& choice = choices_[group];
  if (!choice.automatic) return choice.spec;
  CodecSpec spec = auto_push_;
  if (spec.sparse() && small_[group]) {
    spec = CodecSpec();  // There is nothing to gain.
    spec.kind = fp16_accepted_ ? CodecKind::kFp16 : CodecKind::kFp32;
  }
  return spec;
}

absl::Status CodecPolicy::Restrict(uint32_t refused_codecs) {
  for (size_t group = 0; group < choices_.size(); ++group) {
    const std::string& name = layout_->groups()[group];
    const CodecRules::Choice* said = options_.rules.Named(name);
    if (layout_->averaged(static_cast<uint32_t>(group)) && said != nullptr &&
        (said->automatic || !(said->spec == Whole()))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--codec ", said->automatic ? "auto" : said->spec.ToString(), " of group ", name,
          ": its tensors are averaged, such as running means and counters, and go whole in fp32; leave "
          "the group out of --codec"));
    }
    if (choices_[group].automatic) continue;
    const CodecId codec = choices_[group].spec.wire_codec();
    if ((refused_codecs >> static_cast<int>(codec) & 1) == 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("--codec ", choices_[group].spec.ToString(), " of group ",
                                                   layout_->groups()[group], ": the server does not accept ",
                                                   CodecName(codec), " (--accept-codecs)"));
  }
  MutexLock lock(&mu_);
  fp16_accepted_ = (refused_codecs >> static_cast<int>(CodecId::kFp16) & 1) == 0;
  return absl::OkStatus();
}

void CodecPolicy::Adopt(const CodecChoice& choice) {
  if (!automatic_ || choice.version() == 0) return;
  MutexLock lock(&mu_);
  const bool same = choice.push() == choice_.push() && choice.pull() == choice_.pull();
  if (same && choice.version() == choice_.version()) return;
  const absl::StatusOr<CodecSpec> push = ParseCodecSpec(choice.push());
  const absl::StatusOr<CodecId> pull = ParseValueCodec(choice.pull());
  if (!push.ok() || !pull.ok()) {
    LogWarn("the server's choice of a codec cannot be used: {}",
            (push.ok() ? pull.status() : push.status()).message());
    return;
  }
  choice_ = choice;
  auto_push_ = *push;
  auto_pull_ = *pull;
  if (same) {
    work_.set_choice(choice.version());
  } else {
    older_ = options_.depth + 2;
    LogInfo("codec {}, parameters in {}, by the server's choice", choice.push(), choice.pull());
  }
}

EncodePlan CodecPolicy::PlanFor(double data_epochs, bool flush_all, std::vector<bool> due_shards,
                                absl::Time now) {
  MutexLock lock(&mu_);
  EncodePlan plan;
  plan.due = std::move(due_shards);
  RECON_CHECK(plan.due.empty() || plan.due.size() == layout_->shard_count());
  bool keeps_back = false;
  for (uint32_t group = 0; group < choices_.size(); ++group) {
    CodecSpec spec = SpecFor(group);
    if (spec.sparse() && options_.warmup_data_epochs > 0) {
      spec.ratio = WarmRatio(spec.ratio, data_epochs / options_.warmup_data_epochs);
    }
    keeps_back |= spec.keeps_back();
    plan.groups.push_back(spec);
  }
  if (last_flush_ == absl::InfinitePast() || !keeps_back) last_flush_ = now;
  if (!keeps_back || !options_.feedback) return plan;
  const uint32_t shards = layout_->shard_count();
  // One shard after the other, so that all had their turn in a period.
  const double due = absl::FDivDuration(now - last_flush_, options_.flush_period) * shards;
  const uint32_t turns = flush_all ? shards : static_cast<uint32_t>(std::min<double>(due, shards));
  for (uint32_t i = 0; i < turns; ++i) owes_flush_[(next_flush_ + i) % shards] = true;
  next_flush_ = (next_flush_ + turns) % shards;
  // Not `now`: what is left of a turn counts for the next one.
  if (turns == shards) {
    last_flush_ = now;
  } else {
    last_flush_ += options_.flush_period * turns / shards;
  }
  for (uint32_t shard = 0; shard < shards; ++shard) {
    if (!owes_flush_[shard] || !plan.Has(shard)) continue;
    plan.flush.resize(shards);
    plan.flush[shard] = true;
    owes_flush_[shard] = false;
  }
  return plan;
}

CodecId CodecPolicy::pull_codec() const {
  MutexLock lock(&mu_);
  return options_.pull_auto && automatic_ ? auto_pull_ : options_.pull_codec;
}

void CodecPolicy::NoteStep(absl::Duration all, absl::Duration compute, absl::Duration stall) {
  MutexLock lock(&mu_);
  work_.set_steps(work_.steps() + 1);
  work_.set_step_seconds(work_.step_seconds() + absl::ToDoubleSeconds(all));
  work_.set_compute_seconds(work_.compute_seconds() + absl::ToDoubleSeconds(compute));
  work_.set_stall_seconds(work_.stall_seconds() + absl::ToDoubleSeconds(stall));
}

void CodecPolicy::NotePush(const Exchange& exchange, const EncodedPush& push) {
  MutexLock lock(&mu_);
  if (older_ > 0 && --older_ == 0) work_.set_choice(choice_.version());
  work_.set_pushes(work_.pushes() + 1);
  work_.set_encode_seconds(work_.encode_seconds() + absl::ToDoubleSeconds(exchange.encode));
  work_.set_exchange_seconds(work_.exchange_seconds() + absl::ToDoubleSeconds(exchange.exchange));
  work_.set_push_bytes(work_.push_bytes() + exchange.push_bytes);
  work_.set_pull_bytes(work_.pull_bytes() + exchange.pull_bytes);
  RECON_CHECK_GT(exchange.share, 0.0, "a push without a shard");
  // What is kept back is that of all shards.
  const double norm = push.norm / std::sqrt(exchange.share);
  work_.set_residual_ratio(norm > 0 ? push.residual_norm / norm : 0);
}

StepWork CodecPolicy::work() const {
  const CpuUsage cpu = ProcessCpuUsage();
  MutexLock lock(&mu_);
  StepWork work = work_;
  work.set_automatic(automatic_);
  work.set_cpu_seconds(cpu.used_seconds);
  work.set_cpu_wait_seconds(cpu.waited_seconds);
  return work;
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

absl::Duration CodecPolicy::residual_age(absl::Time now) const {
  MutexLock lock(&mu_);
  if (last_flush_ == absl::InfinitePast()) return absl::ZeroDuration();
  // The next shard's turn was a round ago.
  return now - last_flush_ + options_.flush_period * (layout_->shard_count() - 1) / layout_->shard_count();
}

}  // namespace recon
