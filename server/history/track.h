#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/history.pb.h"

namespace recon {

// Some quantities over time in bounded memory: the newest points as they were sampled, older ones thinned. A
// level that is full gives its two oldest points to the next one as a single point, so that a point of level
// k stands for 2^k samples; the last level halves itself in place. Of what is merged the mean, the least and
// the greatest value stay.
//
// Pure: no clock, time is an argument; not thread-safe. Times are of the day, in ms since 1970; one that is
// before the last is taken for the last.
class Track {
 public:
  struct Shape {
    size_t level_points;  // Of each level, 2 at least.
    size_t levels;
  };
  // `names` must outlive the track; a value that is not known is NaN.
  Track(absl::Span<const char* const> names, const Shape& shape);

  // One value for each name.
  void Add(int64_t unix_ms, absl::Span<const float> values);

  // The clock was set back: times later than `limit_ms` are moved by `by_ms`, which is negative, but none to
  // before the point that precedes it.
  void MoveLater(int64_t limit_ms, int64_t by_ms);

  // Points that end after `since_ms`, oldest first.
  HistoryTrack Encode(const std::string& name, int64_t since_ms) const;
  // Takes up what Encode() gave. Series of other names are dropped, those it lacks are NaN. DataLoss, and the
  // track stays as it was, if it does not fit together.
  absl::Status Restore(const HistoryTrack& encoded);

  size_t points() const;
  // Of memory, at most, whatever is added.
  size_t bytes_max() const;
  int64_t last_ms() const { return last_ms_; }
  // When its first point begins; 0 if there is none.
  int64_t first_ms() const;

 private:
  struct Value {
    float mean = NAN, min = NAN, max = NAN;
  };
  struct Point {
    int64_t begin_ms = 0, end_ms = 0;
    uint32_t samples = 0;
  };
  // Oldest first; a row of values for each point.
  struct Level {
    std::vector<Point> points;
    std::vector<Value> values;
  };

  // Another point at its end, which has no values yet.
  void Append(const Point& point, Level* level) const;
  static Value Merged(const Value& a, const Value& b, uint32_t a_samples, uint32_t b_samples);
  // The points `from` and `from` + 1 of a level, as one at the end of `to`.
  void Merge(const Level& level, size_t from, Level* to) const;
  void Thin();

  absl::Span<const char* const> names_;
  Shape shape_;
  std::vector<Level> levels_;
  int64_t last_ms_ = 0;
};

}  // namespace recon
