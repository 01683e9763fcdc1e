#include "common/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace recon {
namespace {

constexpr OptimizerKind kKinds[] = {OptimizerKind::kSgd,  OptimizerKind::kMomentum, OptimizerKind::kNesterov,
                                    OptimizerKind::kAdam, OptimizerKind::kAdamW,    OptimizerKind::kMean};

absl::Status CheckRange(const char* flag, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, " is ", value, ", allowed are ", low, " to ", high));
}

}  // namespace

double LearningRateSchedule::Factor(uint64_t update) const {
  if (update < warmup_updates) {
    return static_cast<double>(update + 1) / static_cast<double>(warmup_updates + 1);
  }
  const uint64_t after_warmup = update - warmup_updates;
  switch (kind) {
    case ScheduleKind::kConstant:
      return 1;
    case ScheduleKind::kStep:
      return std::pow(gamma, static_cast<double>(after_warmup / step_updates));
    case ScheduleKind::kCosine:
      break;
  }
  const uint64_t span = total_updates > warmup_updates ? total_updates - warmup_updates : 1;
  const double done = std::min(1.0, static_cast<double>(after_warmup) / static_cast<double>(span));
  return final_fraction + (1 - final_fraction) * 0.5 * (1 + std::cos(M_PI * done));
}

const char* OptimizerName(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kMomentum:
      return "momentum";
    case OptimizerKind::kNesterov:
      return "nesterov";
    case OptimizerKind::kAdam:
      return "adam";
    case OptimizerKind::kAdamW:
      return "adamw";
    case OptimizerKind::kMean:
      return "mean";
  }
  return "unknown";
}

absl::StatusOr<OptimizerKind> ParseOptimizer(absl::string_view name, absl::string_view flag) {
  for (const OptimizerKind kind : kKinds) {
    if (name == OptimizerName(kind)) return kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " ", name, " is unknown; known are sgd, momentum, nesterov, adam, adamw, mean"));
}

absl::StatusOr<LearningRateSchedule> ParseSchedule(absl::string_view text) {
  const absl::Status malformed = absl::InvalidArgumentError(
      absl::StrCat("--schedule ", text,
                   ": expected constant, step:UPDATES[:GAMMA] or cosine:TOTAL_UPDATES[:FINAL_FRACTION]"));
  const std::vector<std::string> words = absl::StrSplit(text, ':');
  LearningRateSchedule schedule;
  if (words[0] == "constant") {
    if (words.size() != 1) return malformed;
    return schedule;
  }
  uint64_t updates = 0;
  double number = words[0] == "step" ? schedule.gamma : schedule.final_fraction;
  if (words.size() < 2 || words.size() > 3 || !absl::SimpleAtoi(words[1], &updates) || updates == 0 ||
      (words.size() == 3 && !absl::SimpleAtod(words[2], &number)) || !(number >= 0 && number <= 1)) {
    return malformed;
  }
  if (words[0] == "step") {
    schedule.kind = ScheduleKind::kStep;
    schedule.step_updates = updates;
    schedule.gamma = number;
    return schedule;
  }
  if (words[0] != "cosine") return malformed;
  schedule.kind = ScheduleKind::kCosine;
  schedule.total_updates = updates;
  schedule.final_fraction = number;
  return schedule;
}

absl::Status CheckOptimizer(const OptimizerConfig& config) {
  absl::Status status = CheckRange("--learning-rate", config.learning_rate, 0, 1e6);
  status.Update(CheckRange("--momentum", config.momentum, 0, 1));
  status.Update(CheckRange("--beta1", config.beta1, 0, 0.9999999));
  status.Update(CheckRange("--beta2", config.beta2, 0, 0.9999999));
  status.Update(CheckRange("--epsilon", config.epsilon, 1e-30, 1));
  status.Update(CheckRange("--weight-decay", config.weight_decay, 0, 1e3));
  status.Update(CheckRange("--clip-norm", config.clip_norm, 0, 1e30));
  return status;
}

bool ZerosChangeNothing(const OptimizerConfig& config) {
  return config.kind == OptimizerKind::kSgd && config.weight_decay == 0;
}

int StatePlanes(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
    case OptimizerKind::kMean:
      return 0;
    case OptimizerKind::kMomentum:
    case OptimizerKind::kNesterov:
      return 1;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamW:
      break;
  }
  return 2;
}

UpdateCoefficients CoefficientsFor(const OptimizerConfig& config, const GroupPolicy& policy, uint64_t update,
                                   double gradient_scale, std::optional<double> learning_rate) {
  if (policy.averaged) {
    UpdateCoefficients moved;
    moved.gradient_scale = static_cast<float>(gradient_scale);
    moved.learning_rate = 1;
    return moved;
  }
  const double rate = learning_rate.value_or(config.learning_rate * policy.learning_rate_scale *
                                             config.schedule.Factor(update));
  const double decay = config.weight_decay * policy.weight_decay_scale;
  const auto t = static_cast<double>(update + 1);
  UpdateCoefficients c;
  c.kind = config.kind;
  c.gradient_scale = static_cast<float>(gradient_scale);
  c.learning_rate = static_cast<float>(rate);
  c.momentum = static_cast<float>(config.momentum);
  c.beta1 = static_cast<float>(config.beta1);
  c.one_minus_beta1 = static_cast<float>(1 - config.beta1);
  c.beta2 = static_cast<float>(config.beta2);
  c.one_minus_beta2 = static_cast<float>(1 - config.beta2);
  c.epsilon = static_cast<float>(config.epsilon);
  c.weight_decay = config.kind == OptimizerKind::kAdamW ? 0 : static_cast<float>(decay);
  c.decay_factor = config.kind == OptimizerKind::kAdamW ? static_cast<float>(1 - rate * decay) : 1;
  c.step_size = static_cast<float>(rate / (1 - std::pow(config.beta1, t)));
  c.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(config.beta2, t)));
  return c;
}

}  // namespace recon
