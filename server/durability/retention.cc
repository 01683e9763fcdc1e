#include "server/durability/retention.h"

#include <set>

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

}  // namespace

std::vector<Generation> ToDelete(const std::vector<RetentionCandidate>& candidates,
                                 const RetentionRules& rules) {
  constexpr int64_t kHourMs = 3'600'000;
  Periods hours(kHourMs, rules.hourly);
  Periods days(24 * kHourMs, rules.daily);
  int readable = 0;
  std::vector<Generation> out;
  for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {
    bool keep = it->pinned || readable < rules.last;
    if (it->readable) {
      ++readable;
      keep |= hours.Keeps(it->created_unix_ms);
      keep |= days.Keeps(it->created_unix_ms);
    }
    if (!keep) out.insert(out.begin(), it->generation);
  }
  return out;
}

}  // namespace recon
