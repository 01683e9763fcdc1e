#include "worker/model/mlp_backend.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "worker/data/cluster_dataset.h"
#include "worker/model/loss_scaler.h"
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

TEST_CASE("in 16 bits the gradient is that of FP32, to their rounding, whatever the loss is scaled by",
          "[mlp]") {
  Fixture f;
  std::vector<float> exact(f.layout.params());
  REQUIRE(f.backend.Gradient(f.batch, {f.parameters, 1}, absl::MakeSpan(exact)).ok());
  for (const Precision precision : {Precision::kBf16, Precision::kFp16}) {
    MlpBackend backend(f.model, 1, precision);
    backend.Bind(&f.layout);
    for (const float scale : {1.0f, 1024.0f}) {
      INFO(PrecisionName(precision) << ", loss scale " << scale);
      GradientTerms terms;
      terms.loss_scale = scale;
      std::vector<float> gradient(f.layout.params());
      const auto result = backend.Gradient(f.batch, {f.parameters, 1}, absl::MakeSpan(gradient), terms);
      REQUIRE(result.ok());
      CHECK_FALSE(result->overflow);
      double difference = 0, norm = 0;
      for (size_t i = 0; i < exact.size(); ++i) {
        difference += std::pow(gradient[i] - exact[i], 2);
        norm += std::pow(exact[i], 2);
      }
      const double relative = std::sqrt(difference / norm);
      CHECK(relative > 0);  // It is rounded.
      CHECK(relative < (precision == Precision::kBf16 ? 0.03 : 0.004));
      // It is evaluated in FP32.
      CHECK(backend.Evaluate(f.batch, {f.parameters, 1})->loss_sum ==
            f.backend.Evaluate(f.batch, {f.parameters, 1})->loss_sum);
    }
  }
}

TEST_CASE("what FP16 does not hold is an overflow, and BF16 holds it", "[mlp]") {
  Fixture f;
  GradientTerms terms;
  terms.loss_scale = LossScaler::kMax;
  std::vector<float> gradient(f.layout.params());
  const auto overflows = [&](Precision precision) {
    MlpBackend backend(f.model, 1, precision);
    backend.Bind(&f.layout);
    return backend.Gradient(f.batch, {f.parameters, 1}, absl::MakeSpan(gradient), terms)->overflow;
  };
  CHECK(overflows(Precision::kFp16));
  CHECK_FALSE(overflows(Precision::kBf16));
  CHECK_FALSE(overflows(Precision::kFp32));
  terms.loss_scale = 1;
  CHECK_FALSE(overflows(Precision::kFp16));
  f.parameters[3] = 70'000;  // A parameter may be too large, too.
  CHECK(overflows(Precision::kFp16));
  CHECK_FALSE(overflows(Precision::kBf16));
}

TEST_CASE("the gradients of a batch's pieces add up to that of the batch", "[mlp]") {
  Fixture f;
  std::vector<float> whole(f.layout.params());
  REQUIRE(f.backend.Gradient(f.batch, {f.parameters, 1}, absl::MakeSpan(whole)).ok());
  for (const size_t piece_samples : {1, 2, 3, 6}) {
    std::vector<float> sum(f.layout.params(), NAN);  // What was there counts for nothing.
    GradientTerms terms;
    terms.batch_samples = f.batch.samples;
    for (size_t at = 0; at < f.batch.samples; at += piece_samples) {
      Batch piece;
      piece.samples = std::min(piece_samples, f.batch.samples - at);
      piece.features.assign(f.batch.features.begin() + static_cast<ptrdiff_t>(6 * at),
                            f.batch.features.begin() + static_cast<ptrdiff_t>(6 * (at + piece.samples)));
      piece.labels.assign(f.batch.labels.begin() + static_cast<ptrdiff_t>(at),
                          f.batch.labels.begin() + static_cast<ptrdiff_t>(at + piece.samples));
      REQUIRE(f.backend.Gradient(piece, {f.parameters, 1}, absl::MakeSpan(sum), terms).ok());
      terms.add = true;
    }
    INFO("pieces of " << piece_samples);
    for (size_t i = 0; i < whole.size(); ++i) CHECK(sum[i] == Approx(whole[i]).margin(1e-6));
  }
}

TEST_CASE("a loss scale is halved by each overflow and doubled by 2,000 batches without, within bounds",
          "[mlp]") {
  LossScaler scaler;
  CHECK(scaler.scale() == 65536);
  scaler.NoteOverflow();
  CHECK(scaler.scale() == 32768);
  for (int i = 0; i < 1999; ++i) scaler.NoteFinite();
  CHECK(scaler.scale() == 32768);
  scaler.NoteOverflow();  // They count anew.
  for (int i = 0; i < 1999; ++i) scaler.NoteFinite();
  CHECK(scaler.scale() == 16384);
  scaler.NoteFinite();
  CHECK(scaler.scale() == 32768);
  for (int i = 0; i < 40; ++i) scaler.NoteOverflow();
  CHECK(scaler.scale() == 1);
  CHECK(scaler.at_least());
  for (int i = 0; i < 40 * 2000; ++i) scaler.NoteFinite();
  CHECK(scaler.scale() == LossScaler::kMax);
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
