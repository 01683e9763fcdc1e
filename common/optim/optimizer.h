#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recon {

// kMean: the server computes no optimizer; a synchronous step leaves the mean of its gradients in place of
// the values, and workers step by it. Averaged tensors are then what the step's first contribution says.
enum class OptimizerKind { kSgd, kMomentum, kNesterov, kAdam, kAdamW, kMean };
enum class ScheduleKind { kConstant, kStep, kCosine };

// The learning rate as a function of a shard's update number (its version before the update).
struct LearningRateSchedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  // Linear from 1/(warmup_updates + 1) of the rate to all of it, before everything else.
  uint64_t warmup_updates = 0;
  // Step: multiplied by `gamma` after each `step_updates` updates that follow the warm-up.
  uint64_t step_updates = 1;
  double gamma = 0.1;
  // Cosine: down to `final_fraction` of the rate over `total_updates`, the warm-up included
  // (Loshchilov and Hutter, "SGDR", ICLR 2017, eq. 5, one period).
  uint64_t total_updates = 1;
  double final_fraction = 0;

  // Factor to multiply the base rate with, for update `update` (from 0).
  double Factor(uint64_t update) const;
};

// One optimizer for the job. Definitions are PyTorch's (torch.optim.SGD, Adam, AdamW), dampening 0.
//
// Sparse pushes are lazy, as torch.optim.SparseAdam is: an update touches the parameters that the push names
// and their state. For the others no momentum is added, no moment decays and no weight decays; bias
// correction and schedule count the shard's updates, whether they named a parameter or not. A value that an
// encoder with error feedback held back for n steps arrives as the sum of n gradients: SGD applies it in
// full, Adam normalizes it.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdam;
  double learning_rate = 0.001;
  double momentum = 0.9;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  // A push whose global L2 norm is larger is scaled down to it; 0 = off.
  double clip_norm = 0;
  LearningRateSchedule schedule;
};

// What a group changes of it.
struct GroupPolicy {
  double learning_rate_scale = 1;
  double weight_decay_scale = 1;
  // Not trained: pushes say how far the values have moved, and they go there, without optimizer, decay,
  // clipping or correction of staleness. A synchronous step takes the mean by samples.
  bool averaged = false;
};

// "sgd", "momentum", "nesterov", "adam", "adamw" or "mean"; InvalidArgument, naming the flag, otherwise.
absl::StatusOr<OptimizerKind> ParseOptimizer(absl::string_view name, absl::string_view flag = "--optimizer");
const char* OptimizerName(OptimizerKind kind);
// "constant", "step:UPDATES[:GAMMA]" or "cosine:TOTAL_UPDATES[:FINAL_FRACTION]".
absl::StatusOr<LearningRateSchedule> ParseSchedule(absl::string_view text);
// InvalidArgument with the flag's name for a value outside its range.
absl::Status CheckOptimizer(const OptimizerConfig& config);

// Whether a gradient of 0 leaves a parameter and its state as they are: a push may leave zeros out then.
bool ZerosChangeNothing(const OptimizerConfig& config);

// FP32 values kept per parameter beside the parameter: 0 (sgd, mean), 1 (momentum) or 2 (Adam's moments).
int StatePlanes(OptimizerKind kind);

// The numbers one update needs, computed once per shard and update in double precision.
struct UpdateCoefficients {
  OptimizerKind kind = OptimizerKind::kSgd;
  float encoded_scale = 1;   // What the encoded values of a gradient in FP16 are times: 2^exponent.
  float gradient_scale = 1;  // Clipping, and 1/weight of a mean.
  float learning_rate = 0;
  float momentum = 0;
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float epsilon = 0;
  float weight_decay = 0;              // L2, added to the gradient.
  float decay_factor = 1;              // AdamW: parameters are multiplied by it first.
  float step_size = 0;                 // Adam: learning rate / (1 - beta1^t).
  float inverse_sqrt_correction2 = 1;  // Adam: 1 / sqrt(1 - beta2^t).
};

// For update number `update` (from 0) of a shard. `gradient_scale` as above. `learning_rate`: the whole of
// it, in place of the configured one, its schedule and the group's scale.
UpdateCoefficients CoefficientsFor(const OptimizerConfig& config, const GroupPolicy& policy, uint64_t update,
                                   double gradient_scale, std::optional<double> learning_rate = std::nullopt);

}  // namespace recon
