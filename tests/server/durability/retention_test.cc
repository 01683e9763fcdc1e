#include "server/durability/retention.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "catch2/catch.hpp"

namespace recon {
namespace {

constexpr int64_t kMinuteMs = 60'000;

std::vector<RetentionCandidate> EveryMinutes(int count, int minutes) {
  std::vector<RetentionCandidate> candidates;
  for (int i = 0; i < count; ++i) {
    RetentionCandidate candidate;
    candidate.generation = Generation(static_cast<uint64_t>(i + 1));
    candidate.created_unix_ms = i * minutes * kMinuteMs;
    candidates.push_back(candidate);
  }
  return candidates;
}

std::vector<uint64_t> Kept(const std::vector<RetentionCandidate>& candidates, const RetentionRules& rules) {
  const std::vector<Generation> deleted = ToDelete(candidates, rules);
  std::vector<uint64_t> kept;
  for (const RetentionCandidate& candidate : candidates) {
    if (std::find(deleted.begin(), deleted.end(), candidate.generation) == deleted.end()) {
      kept.push_back(candidate.generation.value());
    }
  }
  return kept;
}

}  // namespace

TEST_CASE("the newest stay, and those that are pinned", "[retention]") {
  std::vector<RetentionCandidate> candidates = EveryMinutes(6, 1);
  CHECK(Kept(candidates, {2, 0, 0}) == std::vector<uint64_t>{5, 6});
  candidates[1].pinned = true;
  CHECK(Kept(candidates, {2, 0, 0}) == std::vector<uint64_t>{2, 5, 6});
  CHECK(Kept(candidates, {100, 0, 0}).size() == 6);
  CHECK(ToDelete({}, {2, 3, 4}).empty());
}

TEST_CASE("the newest of each hour and of each day stay", "[retention]") {
  // Every 20 minutes for three days: 72 an hour's three.
  const std::vector<RetentionCandidate> candidates = EveryMinutes(3 * 72, 20);
  CHECK(Kept(candidates, {2, 3, 0}) == std::vector<uint64_t>{210, 213, 215, 216});
  CHECK(Kept(candidates, {2, 0, 2}) == std::vector<uint64_t>{144, 215, 216});
  CHECK(Kept(candidates, {2, 2, 9}) == std::vector<uint64_t>{72, 144, 213, 215, 216});
}

TEST_CASE("a damaged snapshot takes no place, and goes in time", "[retention]") {
  std::vector<RetentionCandidate> candidates = EveryMinutes(6, 1);
  candidates[5].readable = false;
  candidates[4].readable = false;
  CHECK(Kept(candidates, {2, 0, 0}) == std::vector<uint64_t>{3, 4, 5, 6});
  candidates[5].readable = true;
  CHECK(Kept(candidates, {2, 0, 0}) == std::vector<uint64_t>{4, 5, 6});
}

TEST_CASE("the last snapshot whose values are all finite stays, however many follow", "[retention]") {
  std::vector<RetentionCandidate> candidates = EveryMinutes(8, 1);
  candidates[1].finite = candidates[2].finite = true;
  CHECK(Kept(candidates, {2, 0, 0}) == std::vector<uint64_t>{3, 7, 8});
  candidates[2].readable = candidates[2].finite = false;
  CHECK(Kept(candidates, {2, 0, 0}) == std::vector<uint64_t>{2, 7, 8});
  candidates[6].finite = true;
  CHECK(Kept(candidates, {2, 0, 0}) == std::vector<uint64_t>{7, 8});
}

TEST_CASE("the first snapshot with the best evaluation stays, if one is asked for", "[retention]") {
  std::vector<RetentionCandidate> candidates = EveryMinutes(8, 1);
  const double accuracies[] = {.5, .7, .7, .6};
  const double losses[] = {.3, .2, .1, std::nan("")};
  for (size_t i = 0; i < 4; ++i) candidates[i + 1].evaluation = Evaluation{accuracies[i], losses[i]};
  RetentionRules rules{2, 0, 0, BestBy::kAccuracy};
  CHECK(Kept(candidates, rules) == std::vector<uint64_t>{3, 7, 8});
  rules.best = BestBy::kLoss;
  CHECK(Kept(candidates, rules) == std::vector<uint64_t>{4, 7, 8});
  rules.best = BestBy::kNone;
  CHECK(Kept(candidates, rules) == std::vector<uint64_t>{7, 8});
  CHECK(absl::IsInvalidArgument(ParseBestBy("f1").status()));
}

TEST_CASE("a snapshot's evaluation is the last that all test samples are in", "[retention]") {
  Manifest manifest;
  manifest.mutable_control()->mutable_job()->set_test_samples(100);
  CHECK_FALSE(LastEvaluation(manifest));
  for (uint32_t data_epochs = 1; data_epochs <= 3; ++data_epochs) {
    CompletedPass* pass = manifest.mutable_control()->add_passes();
    pass->set_kind(LEASE_EVAL);
    pass->set_data_epoch(data_epochs);
    for (uint32_t split = 0; split < (data_epochs < 3 ? 2 : 1); ++split) {  // The third is under way.
      EvalResult* eval = pass->add_eval();
      eval->set_samples(50);
      eval->set_correct(10 * data_epochs);
      eval->set_loss_sum(25);
    }
  }
  const std::optional<Evaluation> last = LastEvaluation(manifest);
  REQUIRE(last);
  CHECK(last->accuracy == Approx(.4));
  CHECK(last->loss == Approx(.5));
}

}  // namespace recon
