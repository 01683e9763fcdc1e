#include "worker/encode/codec_controller.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"

namespace recon {
namespace {

constexpr size_t kFirstRung = 1;
// Rungs that cost this much more than the cheapest are as good, if less is lost.
constexpr double kAsCheap = 1.03;
// Rungs within this are measured often enough to tell them apart.
constexpr double kClose = 1.5;
constexpr size_t kWindowsEach = 5;
// A training thread that waits for less than this share of a step has its communication hidden.
constexpr double kHiddenShare = 0.04;
// Threads that wait this long for each second on a core share cores with others.
constexpr double kContended = 0.2;
constexpr double kDrift = 1.4;
constexpr double kResidualRatioMax = 100;
constexpr int kFirstProbeAfter = 60;
constexpr int kLastProbeAfter = 960;
constexpr double kLinkForgets = 0.99;
// A window is one visit's: cheap to change often, long enough to tell.
constexpr int kVisitWindows = 2;

CodecController::Rung MakeRung(CodecKind kind, double ratio, CodecId pull) {
  CodecController::Rung rung;
  rung.push.kind = kind;
  rung.push.ratio = ratio;
  rung.pull = pull;
  return rung;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace

CodecController::CodecController(uint32_t refused_codecs)
    : windows_until_probe_(kFirstProbeAfter), reason_("to begin with") {
  for (const Rung& rung :
       {MakeRung(CodecKind::kFp32, 1, CodecId::kFp32), MakeRung(CodecKind::kFp16, 1, CodecId::kFp16),
        MakeRung(CodecKind::kTopK, 0.05, CodecId::kFp16), MakeRung(CodecKind::kTopK, 0.01, CodecId::kFp16),
        MakeRung(CodecKind::kTopK, 0.001, CodecId::kFp16)}) {
    const bool accepted = (refused_codecs >> static_cast<int>(rung.push.wire_codec()) & 1) == 0;
    if (accepted || rung.push.kind == CodecKind::kFp32) ladder_.push_back(rung);
  }
  measured_.resize(ladder_.size());
  rung_ = std::min(kFirstRung, ladder_.size() - 1);
  lossiest_ = ladder_.size() - 1;
}

bool CodecController::MoveTo(size_t rung, std::string reason) {
  reason_ = std::move(reason);
  const bool changed = rung != rung_;
  if (changed) windows_visited_ = 0;
  rung_ = rung;
  return changed;
}

bool CodecController::contended() const { return wait_per_cpu_ > kContended; }

// The link works while the worker computes; what it needs beyond that is waited for.
double CodecController::WaitOf(const Window& window) const {
  auto bytes = static_cast<double>(window.push_bytes);
  if (window.push_bytes < window.dense_pull_bytes / 2) {
    bytes = std::min<double>(bytes * window.workers, static_cast<double>(window.dense_pull_bytes));
  }
  const double link = link_bytes_per_second_ > 0 ? bytes / link_bytes_per_second_ : 0;
  return std::max(window.stall_seconds, link - window.compute_seconds);
}

double CodecController::CostOf(const Window& window) const {
  const double busy =
      contended() ? window.cpu_seconds * (1 + wait_per_cpu_) : window.seconds - window.stall_seconds;
  return (busy + WaitOf(window)) / window.steps;
}

double CodecController::Cost(size_t rung) const {
  std::vector<double> costs;
  for (const Window& window : measured_[rung].windows) costs.push_back(CostOf(window));
  return costs.empty() ? std::numeric_limits<double>::infinity() : Median(std::move(costs));
}

double CodecController::PlainCost(size_t rung) const {
  std::vector<double> costs;
  for (const Window& window : measured_[rung].windows) {
    const double busy = contended() ? window.cpu_seconds : window.seconds - window.stall_seconds;
    costs.push_back((busy + WaitOf(window)) / window.steps);
  }
  return costs.empty() ? std::numeric_limits<double>::infinity() : Median(std::move(costs));
}

bool CodecController::Stalled(size_t rung) const {
  std::vector<double> shares;
  for (const Window& window : measured_[rung].windows) shares.push_back(WaitOf(window) / window.seconds);
  return !shares.empty() && Median(std::move(shares)) > kHiddenShare;
}

double CodecController::LowestCost() const {
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t rung = 0; rung <= lossiest_; ++rung) lowest = std::min(lowest, Cost(rung));
  return lowest;
}

size_t CodecController::Best() const {
  const double lowest = LowestCost();
  for (size_t rung = 0; rung <= lossiest_; ++rung) {
    if (Cost(rung) <= kAsCheap * lowest) return rung;
  }
  return lossiest_;
}

// What a step would take on a less compressed rung if the link were its bound. The bytes of dense rungs
// follow from their width; a sparse rung has at most five times those of the next one.
double CodecController::PredictedSeconds(size_t rung) const {
  const double factor = ladder_[rung].push.sparse() ? 5 : ladder_[rung + 1].push.sparse() ? 10 : 2;
  const Window& next = measured_[rung + 1].windows.back();
  return static_cast<double>(std::max(next.push_bytes, next.pull_bytes)) / next.steps * factor /
         link_bytes_per_second_;
}

size_t CodecController::Explore(std::string* why) {
  // More compression, while something waits for it.
  for (size_t rung = 0; rung < lossiest_; ++rung) {
    if (measured_[rung].windows.empty() || !measured_[rung + 1].windows.empty()) continue;
    if (!Stalled(rung) && !contended()) continue;
    *why = "tries more compression";
    return rung + 1;
  }
  const double lowest = LowestCost();
  for (size_t rung = 0; rung < lossiest_; ++rung) {
    Measured& below = measured_[rung];
    if (!below.windows.empty() || below.hopeless || Cost(rung + 1) > kClose * lowest) continue;
    if (PredictedSeconds(rung) < 3 * lowest) {
      *why = "tries less compression";
      return rung;
    }
    below.hopeless = true;
  }
  // Those that come close, the least measured first.
  size_t next = rung_;
  for (size_t rung = 0; rung <= lossiest_; ++rung) {
    const size_t windows = measured_[rung].windows.size();
    if (windows == 0 || windows >= kWindowsEach || Cost(rung) > kClose * lowest) continue;
    if (next == rung_ && measured_[rung_].windows.size() >= kWindowsEach) next = rung;
    if (windows < measured_[next].windows.size()) next = rung;
  }
  *why = "compares the closest";
  return next;
}

bool CodecController::Observe(const Window& window) {
  std::deque<Window>& here = measured_[rung_].windows;
  here.push_back(window);
  if (here.size() > kWindowsEach) here.pop_front();
  if (window.cpu_seconds > 0) {
    const double waited = window.cpu_wait_seconds / window.cpu_seconds;
    wait_per_cpu_ = wait_per_cpu_ == 0 ? waited : (7 * wait_per_cpu_ + waited) / 8;
  }
  const double rate =
      window.exchange_seconds > 0
          ? static_cast<double>(std::max(window.push_bytes, window.pull_bytes)) / window.exchange_seconds
          : 0;
  link_bytes_per_second_ = std::max(rate, link_bytes_per_second_ * kLinkForgets);
  const std::string numbers = absl::StrFormat(
      "a step takes %.1f ms: computing %.1f, encoding %.1f, waiting for the link %.1f (%.1f MB/s), %.1f of "
      "CPU time%s",
      1e3 * window.seconds / window.steps, 1e3 * window.compute_seconds / window.steps,
      1e3 * window.encode_seconds / window.steps, 1e3 * window.stall_seconds / window.steps,
      link_bytes_per_second_ / 1e6, 1e3 * window.cpu_seconds / window.steps,
      contended() ? " on cores it shares" : "");
  if (window.residual_ratio > kResidualRatioMax && rung_ > 0) {
    lossiest_ = rung_ - 1;
    settled_ = false;
    return MoveTo(lossiest_, absl::StrFormat("what was kept back is %.0f times a push: less compression",
                                             window.residual_ratio));
  }
  if (settled_) {
    const double cost = PlainCost(rung_);
    const bool drifted = cost > kDrift * settled_cost_ || cost * kDrift < settled_cost_;
    if (!drifted && ++windows_settled_ < windows_until_probe_) return false;
    windows_until_probe_ = drifted ? kFirstProbeAfter : std::min(2 * windows_until_probe_, kLastProbeAfter);
    if (drifted) link_bytes_per_second_ = rate;  // The link may be another one.
    settled_ = false;
    for (size_t rung = 0; rung < measured_.size(); ++rung) {
      if (rung != rung_) measured_[rung] = Measured();
    }
  }
  std::string why;
  const size_t next = Explore(&why);
  const bool known = next == rung_ && here.size() >= kWindowsEach;
  if (!known) {
    // A few windows a visit: each change costs some.
    const bool stay = ++windows_visited_ < kVisitWindows && Cost(rung_) <= kClose * LowestCost();
    return stay ? false : MoveTo(next, numbers + ": " + why);
  }
  const size_t best = Best();
  settled_ = true;
  windows_settled_ = 0;
  settled_cost_ = PlainCost(best);
  return MoveTo(best, absl::StrFormat("%s; the cheapest codec within 3 %% is %s", numbers,
                                      ladder_[best].push.ToString()));
}

}  // namespace recon
