#include "server/history/track.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace recon {

Track::Track(absl::Span<const char* const> names, const Shape& shape)
    : names_(names), shape_(shape), levels_(shape.levels) {
  RECON_CHECK_GE(shape.level_points, 2);
  RECON_CHECK_GE(shape.levels, 1);
}

Track::Value Track::Merged(const Value& a, const Value& b, uint32_t a_samples, uint32_t b_samples) {
  if (std::isnan(a.mean)) return b;
  if (std::isnan(b.mean)) return a;
  const double sum = static_cast<double>(a.mean) * a_samples + static_cast<double>(b.mean) * b_samples;
  return {static_cast<float>(sum / (static_cast<double>(a_samples) + b_samples)), std::min(a.min, b.min),
          std::max(a.max, b.max)};
}

void Track::Append(const Point& point, Level* level) const {
  if (level->points.empty()) {  // No more than it can come to: there are thousands of them.
    level->points.reserve(shape_.level_points + 2);
    level->values.reserve((shape_.level_points + 2) * names_.size());
  }
  level->points.push_back(point);
}

void Track::Merge(const Level& level, size_t from, Level* to) const {
  RECON_CHECK_LT(from + 1, level.points.size());
  const Point& a = level.points[from];
  const Point& b = level.points[from + 1];
  const uint64_t samples = uint64_t{a.samples} + b.samples;
  Append({a.begin_ms, b.end_ms, static_cast<uint32_t>(std::min<uint64_t>(samples, UINT32_MAX))}, to);
  for (size_t i = 0; i < names_.size(); ++i) {
    to->values.push_back(Merged(level.values[from * names_.size() + i],
                                level.values[(from + 1) * names_.size() + i], a.samples, b.samples));
  }
}

void Track::Thin() {
  for (size_t k = 0; k + 1 < levels_.size(); ++k) {
    Level& level = levels_[k];
    while (level.points.size() > shape_.level_points) {
      Merge(level, 0, &levels_[k + 1]);
      level.points.erase(level.points.begin(), level.points.begin() + 2);
      level.values.erase(level.values.begin(),
                         level.values.begin() + static_cast<std::ptrdiff_t>(2 * names_.size()));
    }
  }
  Level& last = levels_.back();
  while (last.points.size() > shape_.level_points) {
    Level halved;
    const size_t whole = last.points.size() / 2 * 2;
    for (size_t i = 0; i < whole; i += 2) Merge(last, i, &halved);
    if (whole < last.points.size()) {
      Append(last.points.back(), &halved);
      halved.values.insert(halved.values.end(),
                           last.values.end() - static_cast<std::ptrdiff_t>(names_.size()), last.values.end());
    }
    last = std::move(halved);
  }
}

void Track::Add(int64_t unix_ms, absl::Span<const float> values) {
  RECON_CHECK_EQ(values.size(), names_.size());
  last_ms_ = std::max(last_ms_, unix_ms);
  Append({last_ms_, last_ms_, 1}, &levels_[0]);
  for (const float value : values) levels_[0].values.push_back({value, value, value});
  Thin();
}

void Track::MoveLater(int64_t limit_ms, int64_t by_ms) {
  int64_t before = 0;
  const auto move = [&](int64_t* time) {
    if (*time > limit_ms) *time = std::max(before, *time + by_ms);
    before = *time;
  };
  for (size_t k = levels_.size(); k-- > 0;) {
    for (Point& point : levels_[k].points) {
      move(&point.begin_ms);
      move(&point.end_ms);
    }
  }
  last_ms_ = before;
}

HistoryTrack Track::Encode(const std::string& name, int64_t since_ms) const {
  HistoryTrack track;
  track.set_name(name);
  for (const char* series : names_) track.add_series()->set_name(series);
  for (size_t k = levels_.size(); k-- > 0;) {
    RECON_CHECK_EQ(levels_[k].values.size(), levels_[k].points.size() * names_.size());
    for (size_t p = 0; p < levels_[k].points.size(); ++p) {
      const Point& point = levels_[k].points[p];
      if (point.end_ms <= since_ms) continue;
      track.add_begin_ms(point.begin_ms);
      track.add_end_ms(point.end_ms);
      track.add_samples(point.samples);
      track.add_level(static_cast<uint32_t>(k));
      for (size_t i = 0; i < names_.size(); ++i) {
        const Value& value = levels_[k].values[p * names_.size() + i];
        HistorySeries* series = track.mutable_series(static_cast<int>(i));
        series->add_mean(value.mean);
        series->add_min(value.min);
        series->add_max(value.max);
      }
    }
  }
  return track;
}

absl::Status Track::Restore(const HistoryTrack& encoded) {
  const int points = encoded.begin_ms_size();
  const auto wrong = [&](const std::string& what) {
    return absl::DataLossError(absl::StrCat("the series of '", encoded.name(), "': ", what));
  };
  if (encoded.end_ms_size() != points || encoded.samples_size() != points || encoded.level_size() != points)
    return wrong(absl::StrCat(points, " points with lists of other lengths"));
  std::map<std::string, const HistorySeries*> series;
  for (const HistorySeries& one : encoded.series()) {
    if (one.mean_size() != points || one.min_size() != points || one.max_size() != points)
      return wrong(absl::StrCat(one.name(), " has ", one.mean_size(), " values for ", points, " points"));
    series[one.name()] = &one;
  }
  std::vector<Level> levels(shape_.levels);
  int64_t before = 0;
  for (int p = 0; p < points; ++p) {
    const Point point = {encoded.begin_ms(p), encoded.end_ms(p), encoded.samples(p)};
    const bool thinner = p > 0 && encoded.level(p) > encoded.level(p - 1);
    if (point.begin_ms < before || point.end_ms < point.begin_ms || point.samples == 0 || thinner)
      return wrong(absl::StrCat("point ", p, " of ", points, " is out of order"));
    before = point.end_ms;
    Level& level = levels[std::min<size_t>(encoded.level(p), shape_.levels - 1)];
    Append(point, &level);
    for (const char* name : names_) {
      const auto found = series.find(name);
      const HistorySeries* one = found == series.end() ? nullptr : found->second;
      level.values.push_back(one == nullptr ? Value() : Value{one->mean(p), one->min(p), one->max(p)});
    }
  }
  levels_ = std::move(levels);
  last_ms_ = before;
  Thin();  // It may come from a version with larger levels.
  return absl::OkStatus();
}

size_t Track::points() const {
  size_t points = 0;
  for (const Level& level : levels_) points += level.points.size();
  return points;
}

int64_t Track::first_ms() const {
  for (size_t k = levels_.size(); k-- > 0;) {
    if (!levels_[k].points.empty()) return levels_[k].points.front().begin_ms;
  }
  return 0;
}

size_t Track::bytes_max() const {
  const size_t point = sizeof(Point) + names_.size() * sizeof(Value);
  return sizeof(Track) + shape_.levels * (sizeof(Level) + (shape_.level_points + 2) * point);
}

}  // namespace recon
