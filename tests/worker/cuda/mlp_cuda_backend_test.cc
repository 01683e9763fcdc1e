#include <cmath>
#include <iostream>

#include "catch2/catch.hpp"
#include "worker/cuda/cuda_module.h"
#include "worker/data/cluster_dataset.h"
#include "worker/model/mlp_backend.h"

namespace recon {

TEST_CASE("the CUDA backend computes what the CPU backend computes", "[gpu]") {
  const auto module = LoadCudaModule();
  const absl::StatusOr<int> devices = module.ok() ? (*module)->device_count() : module.status();
  if (!devices.ok()) {
    WARN("SKIP: " << devices.status().message());
    return;
  }
  const MlpModel model = *ParseMlp("33-65-17-5");
  const ParamLayout layout = *ParamLayout::Create(model.spec);
  MlpBackend cpu(model, 1);
  cpu.Bind(&layout);
  const auto cuda = (*module)->make_mlp(model, 0, Precision::kFp32);
  REQUIRE(cuda.ok());
  (*cuda)->Bind(&layout);
  const TrainAndTest data = MakeClusters(1000, 1, 33, 5);
  std::vector<float> parameters(layout.params());
  cpu.InitialValues(7, absl::MakeSpan(parameters));
  for (const uint32_t samples : {1u, 2u, 31u, 64u, 257u}) {
    INFO(samples << " samples");
    std::vector<uint32_t> indices;
    for (uint32_t i = 0; i < samples; ++i) indices.push_back(i * 3);
    Batch batch;
    data.train->Read(indices, &batch);
    std::vector<float> expected(layout.params());
    std::vector<float> gradient(layout.params());
    const auto on_cpu = cpu.Gradient(batch, {parameters, samples}, absl::MakeSpan(expected));
    const auto on_gpu = (*cuda)->Gradient(batch, {parameters, samples}, absl::MakeSpan(gradient));
    REQUIRE(on_gpu.ok());
    CHECK(on_gpu->correct == on_cpu->correct);
    CHECK(on_gpu->loss_sum == Approx(on_cpu->loss_sum).epsilon(1e-4));
    double difference = 0;
    double norm = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      difference += std::pow(gradient[i] - expected[i], 2);
      norm += std::pow(expected[i], 2);
    }
    CHECK(std::sqrt(difference) <= 1e-4 * std::sqrt(norm));
  }
}

TEST_CASE("the CUDA backend in 16 bits computes what the CPU backend rounds to them", "[gpu]") {
  const auto module = LoadCudaModule();
  const absl::StatusOr<int> devices = module.ok() ? (*module)->device_count() : module.status();
  if (!devices.ok()) {
    WARN("SKIP: " << devices.status().message());
    return;
  }
  const MlpModel model = *ParseMlp("32-64-16-8");
  const ParamLayout layout = *ParamLayout::Create(model.spec);
  const TrainAndTest data = MakeClusters(1000, 1, 32, 8);
  Batch batch;
  std::vector<uint32_t> indices;
  for (uint32_t i = 0; i < 96; ++i) indices.push_back(i * 3);
  data.train->Read(indices, &batch);
  for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
    INFO(PrecisionName(precision));
    MlpBackend cpu(model, 1, precision);
    cpu.Bind(&layout);
    const auto cuda = (*module)->make_mlp(model, 0, precision);
    REQUIRE(cuda.ok());
    (*cuda)->Bind(&layout);
    std::vector<float> parameters(layout.params());
    cpu.InitialValues(7, absl::MakeSpan(parameters));
    std::vector<float> expected(layout.params()), gradient(layout.params());
    GradientTerms terms;
    terms.loss_scale = 1024;
    CHECK_FALSE(cpu.Gradient(batch, {parameters, 1}, absl::MakeSpan(expected), terms)->overflow);
    const auto result = (*cuda)->Gradient(batch, {parameters, 1}, absl::MakeSpan(gradient), terms);
    REQUIRE(result.ok());
    CHECK_FALSE(result->overflow);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      difference += std::pow(gradient[i] - expected[i], 2);
      norm += std::pow(expected[i], 2);
    }
    // Sums in another order are rounded to a neighbour now and then: 8 and 11 bits.
    CHECK(std::sqrt(difference) <= (precision == Precision::kBf16 ? 0.02 : 0.003) * std::sqrt(norm));
    terms.loss_scale = 16'777'216;
    const auto too_much = (*cuda)->Gradient(batch, {parameters, 1}, absl::MakeSpan(gradient), terms);
    CHECK(too_much->overflow == (precision == Precision::kFp16));
  }
}

}  // namespace recon
