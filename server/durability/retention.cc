#include "server/durability/retention.h"

#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"

namespace recon {
namespace {

// Newest first: whether this one is the newest of a period, and one of the first `count` of those.
class Periods {
 public:
  Periods(int64_t length_ms, int count) : length_ms_(length_ms), count_(count) {}
  bool Keeps(int64_t unix_ms) {
    if (static_cast<int>(seen_.size()) >= count_) return false;
    return seen_.insert(unix_ms / length_ms_).second;
  }

 private:
  const int64_t length_ms_;
  const int count_;
  std::set<int64_t> seen_;
};

// Of those that were evaluated, the first of the best: parameters go on from there.
std::optional<Generation> Best(const std::vector<RetentionCandidate>& candidates, BestBy by) {
  const RetentionCandidate* best = nullptr;
  for (const RetentionCandidate& candidate : candidates) {
    if (!candidate.readable || !candidate.evaluation) continue;
    if (best == nullptr || Better(by, *candidate.evaluation, *best->evaluation)) best = &candidate;
  }
  if (best == nullptr) return std::nullopt;
  return best->generation;
}

}  // namespace

absl::StatusOr<BestBy> ParseBestBy(const std::string& name) {
  if (name.empty()) return BestBy::kNone;
  if (name == "accuracy") return BestBy::kAccuracy;
  if (name == "loss") return BestBy::kLoss;
  return absl::InvalidArgumentError(absl::StrCat("--keep-best ", name, ": expected accuracy or loss"));
}

bool Better(BestBy by, const Evaluation& a, const Evaluation& b) {
  const double value = by == BestBy::kLoss ? -a.loss : a.accuracy;
  const double than = by == BestBy::kLoss ? -b.loss : b.accuracy;
  return std::isfinite(value) && (!std::isfinite(than) || value > than);
}

std::optional<Evaluation> LastEvaluation(const Manifest& manifest) {
  std::optional<Evaluation> last;
  for (const CompletedPass& pass : manifest.control().passes()) {  // Ascending by data epoch.
    if (pass.kind() != LEASE_EVAL) continue;
    EvalResult sum;
    for (const EvalResult& eval : pass.eval()) {
      sum.set_samples(sum.samples() + eval.samples());
      sum.set_correct(sum.correct() + eval.correct());
      sum.set_loss_sum(sum.loss_sum() + eval.loss_sum());
    }
    if (sum.samples() == 0 || sum.samples() != manifest.control().job().test_samples()) continue;
    const auto samples = static_cast<double>(sum.samples());
    last = Evaluation{static_cast<double>(sum.correct()) / samples, sum.loss_sum() / samples};
  }
  return last;
}

std::vector<Generation> ToDelete(const std::vector<RetentionCandidate>& candidates,
                                 const RetentionRules& rules) {
  constexpr int64_t kHourMs = 3'600'000;
  Periods hours(kHourMs, rules.hourly);
  Periods days(24 * kHourMs, rules.daily);
  const std::optional<Generation> best =
      rules.best == BestBy::kNone ? std::nullopt : Best(candidates, rules.best);
  int readable = 0;
  bool has_finite = false;
  std::vector<Generation> out;
  for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {
    bool keep = it->pinned || readable < rules.last || best == it->generation;
    if (it->readable) {
      // A run that went wrong must not push out what it can go back to.
      keep |= it->finite && !has_finite;
      has_finite |= it->finite;
      ++readable;
      keep |= hours.Keeps(it->created_unix_ms);
      keep |= days.Keeps(it->created_unix_ms);
    }
    if (!keep) out.insert(out.begin(), it->generation);
  }
  return out;
}

}  // namespace recon
