#include "server/durability/retention.h"

#include <algorithm>

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

}  // namespace recon
