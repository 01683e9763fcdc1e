#include "worker/model/mlp_backend.h"

#include <cmath>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "worker/data/cluster_dataset.h"
#include "worker/model/model_backend.h"

namespace recon {
namespace {

struct Fixture {
  MlpModel model = *ParseMlp("6-5-4-3");
  ParamLayout layout = *ParamLayout::Create(model.spec);
  MlpBackend backend{model, 1};
  std::vector<float> parameters = std::vector<float>(layout.params());
  Batch batch;

  Fixture() {
    backend.Bind(&layout);
    backend.InitialValues(3, absl::MakeSpan(parameters));
    MakeClusters(100, 1, 6, 3).train->Read({1, 2, 3, 4, 5, 6, 7}, &batch);
  }
  double MeanLoss() {
    return backend.Evaluate(batch, {parameters, 0})->loss_sum / static_cast<double>(batch.samples);
  }
};

}  // namespace

TEST_CASE("the gradient is the slope of the loss in every parameter", "[mlp]") {
  Fixture f;
  std::vector<float> gradient(f.layout.params());
  const auto result = f.backend.Gradient(f.batch, {f.parameters, 0}, absl::MakeSpan(gradient));
  REQUIRE(result.ok());
  CHECK(result->samples == 7);
  CHECK(result->loss_sum / 7 == Approx(f.MeanLoss()));
  for (size_t i = 0; i < f.parameters.size(); ++i) {
    const float before = f.parameters[i];
    constexpr float kStep = 1e-3f;
    f.parameters[i] = before + kStep;
    const double above = f.MeanLoss();
    f.parameters[i] = before - kStep;
    const double below = f.MeanLoss();
    f.parameters[i] = before;
    INFO("parameter " << i);
    CHECK(gradient[i] == Approx((above - below) / (2 * kStep)).margin(2e-3));
  }
}

TEST_CASE("initial values depend on the seed alone, biases are 0", "[mlp]") {
  Fixture f;
  std::vector<float> again(f.layout.params());
  f.backend.InitialValues(3, absl::MakeSpan(again));
  CHECK(again == f.parameters);
  f.backend.InitialValues(4, absl::MakeSpan(again));
  CHECK(again != f.parameters);
  const TensorPlacement& bias = f.layout.tensors()[1];
  CHECK(bias.name == "layer0.bias");
  for (size_t i = 0; i < bias.size; ++i) CHECK(again[bias.offset + i] == 0);
}

TEST_CASE("a model that does not fit the data, or no model at all, is refused by flag", "[mlp]") {
  ModelOptions options;
  options.device = "cpu";
  options.features = 6;
  options.classes = 3;
  const auto message = [&](const std::string& model) {
    options.model = model;
    const absl::Status status = MakeBackend(options).status();
    CHECK(absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  CHECK(absl::StrContains(message("mlp:7-3"), "takes 7 features and 3 classes, the data has 6 and 3"));
  CHECK(absl::StrContains(message("mlp:6-2"), "2 classes"));
  for (const char* model : {"mlp:", "mlp:6", "mlp:6-0-3", "mlp:6-x", "cnn", "synthetic:", ""}) message(model);
  options.model = "mlp:6-3";
  CHECK(MakeBackend(options).ok());
  for (const char* device : {"gpu", "cuda", "cuda:-1", "cuda:99"}) {
    options.device = device;
    CHECK(absl::IsInvalidArgument(MakeBackend(options).status()));
  }
}

}  // namespace recon
