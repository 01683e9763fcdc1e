#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "proto/manifest.pb.h"

namespace recon {

// What an evaluation came to, per sample of the test set.
struct Evaluation {
  double accuracy = 0;
  double loss = 0;
};

// By which the best snapshot is chosen.
enum class BestBy { kNone, kAccuracy, kLoss };
// "accuracy" or "loss"; InvalidArgument otherwise.
absl::StatusOr<BestBy> ParseBestBy(const std::string& name);
// Whether `a` is better than `b`; one that is not finite never is.
bool Better(BestBy by, const Evaluation& a, const Evaluation& b);

// Which snapshots stay. Pure. The newest of those whose values are all finite always does.
struct RetentionRules {
  int last = 5;                 // The newest,
  int hourly = 0;               // the newest of each of the newest so many hours (UTC) that have one,
  int daily = 0;                // of so many days,
  BestBy best = BestBy::kNone;  // and the one with the best evaluation.
};

struct RetentionCandidate {
  Generation generation;
  bool readable = true;  // A manifest that is damaged counts for nothing.
  bool pinned = false;
  int64_t created_unix_ms = 0;
  bool finite = false;  // All values are known to be.
  std::optional<Evaluation> evaluation;
};

// The last evaluation of all test samples that was completed before a snapshot's cut; none if there was none.
std::optional<Evaluation> LastEvaluation(const Manifest& manifest);

// Those to delete, of `candidates` in ascending order. Pinned ones stay. Unreadable ones go when as many
// newer ones as `last` can be read.
std::vector<Generation> ToDelete(const std::vector<RetentionCandidate>& candidates,
                                 const RetentionRules& rules);

}  // namespace recon
