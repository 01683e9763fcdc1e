#pragma once

#include <algorithm>
#include <vector>

#include "tools/bench/median.h"

namespace recon {

// How long there was no acknowledgement, at most, in every second of some rounds.
class PushGaps {
 public:
  // Of one round, in seconds; at least one.
  void Add(const std::vector<double>& gaps) {
    begins_.push_back(gaps.front());
    // The last one is cut short.
    ends_.push_back(std::max(gaps.back(), gaps[gaps.size() < 2 ? 0 : gaps.size() - 2]));
    longest_.push_back(*std::max_element(gaps.begin(), gaps.end()));
    all_.insert(all_.end(), gaps.begin(), gaps.end());
  }
  double LongestMs() const { return 1e3 * Median(longest_); }
  // Of the round that has the shortest.
  double LeastLongestMs() const { return 1e3 * *std::min_element(longest_.begin(), longest_.end()); }
  double BeginMs() const { return 1e3 * Median(begins_); }
  double EndMs() const { return 1e3 * Median(ends_); }
  // What nine of ten seconds stay below.
  double UsualMs() const { return 1e3 * Percentile(all_, 0.9); }

 private:
  std::vector<double> begins_, ends_, longest_, all_;
};

// What snapshots add to the longest time without an acknowledgement: to a second's in which one begins (its
// cut), in which one ends, and in between; and to that of a whole round. Of rounds the best is taken: a stall
// of ours is in every snapshot. A virtual machine has its own, with snapshots and without: it stands still
// for 30 ms when it gives the memory of a removed file back.
inline double StallMs(const PushGaps& during, const PushGaps& without) {
  const double usual = std::max({during.BeginMs(), during.EndMs(), during.UsualMs()}) - without.UsualMs();
  return std::max({0.0, usual, during.LeastLongestMs() - without.LeastLongestMs()});
}

}  // namespace recon
