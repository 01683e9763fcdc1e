#include "server/control/evaluation_history.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/plain_text.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

absl::Status CheckMetrics(const EvalResult& eval) {
  if (eval.metrics_size() > limits::kMetricsMax) {
    return absl::InvalidArgumentError(absl::StrCat("evaluation with ", eval.metrics_size(),
                                                   " measures, allowed are ", limits::kMetricsMax));
  }
  std::set<std::string> names;
  for (const MetricSum& metric : eval.metrics()) {
    if (metric.name().empty() || metric.name().size() > limits::kNameBytesMax ||
        !names.insert(metric.name()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("evaluation: a measure's name of ", metric.name().size(), " bytes, or one twice"));
    }
    RECON_RETURN_IF_ERROR(CheckPlain("evaluation: a measure's name", metric.name()));
    if (!std::isfinite(metric.sum()) || !(metric.weight() > 0 && metric.weight() <= 1e15)) {
      return absl::InvalidArgumentError(
          absl::StrCat("evaluation: ", metric.name(), " is ", metric.sum(), " over ", metric.weight(),
                       ", expected a finite number over one above 0, 1e15 at most"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckEvaluation(const EvalResult& eval, uint64_t samples) {
  if (eval.samples() != samples || eval.correct() > eval.samples()) {
    return absl::InvalidArgumentError(absl::StrCat("evaluation of ", eval.samples(), " samples, ",
                                                   eval.correct(), " correct; the lease has ", samples));
  }
  return CheckMetrics(eval);
}

const EvalEntry& EvaluationHistory::Add(uint32_t data_epochs, const EvalResult& sum, int64_t unix_ms) {
  RECON_CHECK_GT(sum.samples(), 0);
  EvalEntry entry;
  entry.set_data_epochs(data_epochs);
  entry.set_samples(sum.samples());
  entry.set_accuracy(static_cast<double>(sum.correct()) / static_cast<double>(sum.samples()));
  entry.set_loss(sum.loss_sum() / static_cast<double>(sum.samples()));
  entry.set_unix_ms(unix_ms);
  std::string others;
  for (const MetricSum& metric : sum.metrics()) {
    const double value = metric.sum() / metric.weight();
    if (metric.name() == "accuracy") {
      entry.set_accuracy(value);
      entry.set_samples(static_cast<uint64_t>(std::llround(metric.weight())));
    } else if (metric.name() == "loss") {
      entry.set_loss(value);
      entry.set_samples(static_cast<uint64_t>(std::llround(metric.weight())));
    } else {
      (*entry.mutable_metrics())[metric.name()] = value;
      absl::StrAppend(&others, ", ", metric.name(), " ", absl::StrFormat("%.4g", value));
    }
  }
  LogInfo("data epoch {} of {}: test accuracy {:.4f}, loss {:.4f}{}", data_epochs, data_epochs_,
          entry.accuracy(), entry.loss(), others);
  entries_.push_back(std::move(entry));
  return entries_.back();
}

bool EvaluationHistory::LastIsBest(BestBy by) const {
  RECON_CHECK(!entries_.empty());
  const auto evaluation = [](const EvalEntry& entry) { return Evaluation{entry.accuracy(), entry.loss()}; };
  const Evaluation last = evaluation(entries_.back());
  return std::all_of(entries_.begin(), entries_.end() - 1,
                     [&](const EvalEntry& entry) { return Better(by, last, evaluation(entry)); });
}

}  // namespace recon
