#include "server/control/evaluation_history.h"

#include <limits>

#include "catch2/catch.hpp"
#include "common/base/limits.h"

namespace recon {
namespace {

EvalResult Result(uint64_t samples, uint64_t correct, double loss_sum) {
  EvalResult result;
  result.set_samples(samples);
  result.set_correct(correct);
  result.set_loss_sum(loss_sum);
  return result;
}

void Measure(EvalResult* result, const std::string& name, double sum, double weight) {
  MetricSum* metric = result->add_metrics();
  metric->set_name(name);
  metric->set_sum(sum);
  metric->set_weight(weight);
}

}  // namespace

TEST_CASE("sums become means, and a measure of that name takes the place of accuracy or loss",
          "[evaluations]") {
  EvaluationHistory history(2);
  const EvalEntry plain = history.Add(1, Result(10, 4, 20), 1234);
  CHECK(plain.data_epochs() == 1);
  CHECK(plain.samples() == 10);
  CHECK(plain.accuracy() == 0.4);
  CHECK(plain.loss() == 2);
  CHECK(plain.unix_ms() == 1234);
  EvalResult result = Result(10, 4, 20);
  Measure(&result, "f1", 3, 4);
  Measure(&result, "accuracy", 6, 8);
  Measure(&result, "loss", 3, 6);
  const EvalEntry named = history.Add(2, result, 1235);
  CHECK(named.accuracy() == 0.75);
  CHECK(named.loss() == 0.5);
  CHECK(named.samples() == 6);
  REQUIRE(named.metrics_size() == 1);
  CHECK(named.metrics().at("f1") == 0.75);
  CHECK(history.entries().size() == 2);
}

TEST_CASE("the last evaluation is the best when no other is as good", "[evaluations]") {
  EvaluationHistory history(4);
  history.Add(1, Result(10, 5, 20), 1);
  CHECK(history.LastIsBest(BestBy::kAccuracy));
  history.Add(2, Result(10, 5, 10), 2);
  CHECK_FALSE(history.LastIsBest(BestBy::kAccuracy));
  CHECK(history.LastIsBest(BestBy::kLoss));
  history.Add(3, Result(10, 6, 15), 3);
  CHECK(history.LastIsBest(BestBy::kAccuracy));
  CHECK_FALSE(history.LastIsBest(BestBy::kLoss));
}

TEST_CASE("an evaluation that nobody can have measured is refused", "[evaluations]") {
  EvalResult result = Result(10, 10, 20);
  CHECK(CheckEvaluation(result, 10).ok());
  SECTION("of other samples") { result.set_samples(9); }
  SECTION("more right than there are") { result.set_correct(11); }
  SECTION("a measure twice") {
    Measure(&result, "f1", 1, 1);
    Measure(&result, "f1", 1, 1);
  }
  SECTION("a measure without a name") { Measure(&result, "", 1, 1); }
  SECTION("a name that is too long") { Measure(&result, std::string(limits::kNameBytesMax + 1, 'f'), 1, 1); }
  SECTION("a name that is not plain text") { Measure(&result, "f1\x1b[31m", 1, 1); }
  SECTION("over nothing") { Measure(&result, "f1", 1, 0); }
  SECTION("over more than there can be") { Measure(&result, "f1", 1, 2e15); }
  SECTION("that is not finite") { Measure(&result, "f1", std::numeric_limits<double>::infinity(), 1); }
  SECTION("too many of them") {
    for (int i = 0; i <= limits::kMetricsMax; ++i) Measure(&result, "m" + std::to_string(i), 1, 1);
  }
  CHECK(absl::IsInvalidArgument(CheckEvaluation(result, 10)));
}

}  // namespace recon
