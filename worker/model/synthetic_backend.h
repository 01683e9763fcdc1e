#pragma once

#include <utility>
#include <vector>

#include "worker/model/model_backend.h"

namespace recon {

// A model of real shapes whose computing is simulated: a step gives deterministic pseudo-random gradients, at
// once (--step-ms says how long it is to take). For load tests of everything but the computing.
class SyntheticBackend : public ModelBackend {
 public:
  SyntheticBackend(ModelSpec spec, uint64_t seed);

  const ModelSpec& spec() const override { return spec_; }
  std::string device() const override { return "simulated"; }
  bool simulated() const override { return true; }
  void InitialValues(uint64_t seed, absl::Span<float> values) const override;
  // Loss and hits are 0: there is nothing to learn.
  absl::StatusOr<BatchResult> Evaluate(const Batch& batch, const ParameterView& parameters) override;

 private:
  absl::StatusOr<BatchResult> ComputeGradient(const Batch& batch, const ParameterView& parameters,
                                              const GradientTerms& terms,
                                              absl::Span<float> gradient) override;

  ModelSpec spec_;
  std::vector<float> noise_;
  uint64_t seed_;
};

}  // namespace recon
