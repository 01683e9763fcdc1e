#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace recon {

// What is to happen in a simulated job, in the order of its time, and the chance in it. Whatever happens at
// the same time happens in the order in which it was asked for.
class SimulatedTime {
 public:
  explicit SimulatedTime(uint64_t seed) : random_(seed) {}

  double seconds() const { return now_; }
  absl::Time now() const { return absl::UnixEpoch() + absl::Seconds(now_); }

  void After(double seconds, std::function<void()> what) {
    events_.emplace(now_ + seconds, number_++, std::move(what));
  }
  // Goes on to the next event, and lets it happen.
  void Step() {
    const Event next = events_.top();
    events_.pop();
    now_ = std::get<0>(next);
    std::get<2>(next)();
  }

  uint64_t Random() { return random_(); }
  double Uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  double Exponential(double mean) { return -mean * std::log(1 - Uniform()); }

  // Something does not hold that must hold whatever happens. The first one is kept.
  void Violate(const std::string& what) {
    if (violation_.empty()) violation_ = absl::StrCat("at ", now_, " s: ", what);
  }
  const std::string& violation() const { return violation_; }

 private:
  using Event = std::tuple<double, uint64_t, std::function<void()>>;
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return std::make_pair(std::get<0>(a), std::get<1>(a)) > std::make_pair(std::get<0>(b), std::get<1>(b));
    }
  };

  std::mt19937_64 random_;
  double now_ = 0;
  uint64_t number_ = 0;
  std::priority_queue<Event, std::vector<Event>, Later> events_;
  std::string violation_;
};

}  // namespace recon
