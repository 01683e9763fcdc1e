#include "server/tuning/codec_controller.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"

namespace recon {
namespace {

constexpr size_t kFirstRung = 1;
// Rungs that cost this much more than the cheapest are as good, if less is lost.
constexpr double kAsCheap = 1.03;
// Rungs within this are measured often enough to tell them apart.
constexpr double kClose = 1.3;
constexpr size_t kWindowsEach = 4;
// Measured in one go: changing costs the time of about one window.
constexpr int kWindowsPerVisit = 2;
// A training thread that waits for less than this share of a step has its communication hidden.
constexpr double kHiddenShare = 0.04;
// Threads that wait this long for each second on a core share cores with others.
constexpr double kContended = 0.2;
constexpr double kDrift = 1.4;
constexpr double kResidualRatioMax = 100;
constexpr int kFirstProbeAfter = 60;
constexpr int kLastProbeAfter = 960;
constexpr double kLinkForgets = 0.99;

CodecController::Rung MakeRung(CodecKind kind, double ratio, CodecId pull) {
  CodecController::Rung rung;
  rung.push.kind = kind;
  rung.push.ratio = ratio;
  rung.pull = pull;
  return rung;
}

double Median(std::vector<double> values) {
  RECON_CHECK(!values.empty());
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

void CodecController::Restart() {
  settled_ = false;
  windows_visited_ = 0;
  windows_until_probe_ = kFirstProbeAfter;
  for (Measured& measured : measured_) measured = Measured();
}

bool CodecController::MoveTo(size_t rung, std::string reason) {
  reason_ = std::move(reason);
  RECON_CHECK_LT(rung, ladder_.size());
  const bool changed = rung != rung_;
  if (changed) windows_visited_ = 0;
  rung_ = rung;
  return changed;
}

double CodecController::Cost(size_t rung) const {
  std::vector<double> seconds;
  for (const Window& window : measured_[rung].windows) seconds.push_back(window.step_seconds);
  return seconds.empty() ? std::numeric_limits<double>::infinity() : Median(std::move(seconds));
}

bool CodecController::Stalled(size_t rung) const {
  std::vector<double> shares;
  for (const Window& window : measured_[rung].windows) {
    shares.push_back(window.stall_seconds / window.step_seconds);
  }
  return !shares.empty() && Median(std::move(shares)) > kHiddenShare;
}

// Without a network between them nothing is left out: fewer bytes spare nobody a wait, and the model loses.
size_t CodecController::LossiestAllowed() const {
  if (!no_network_) return lossiest_;
  size_t last = lossiest_;
  while (last > 0 && ladder_[last].push.sparse()) --last;
  return last;
}

double CodecController::LowestCost() const {
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t rung = 0; rung <= LossiestAllowed(); ++rung) lowest = std::min(lowest, Cost(rung));
  return lowest;
}

size_t CodecController::Best() const {
  const double lowest = LowestCost();
  for (size_t rung = 0; rung <= LossiestAllowed(); ++rung) {
    if (Cost(rung) <= kAsCheap * lowest) return rung;
  }
  return LossiestAllowed();
}

// What a step would take on a less compressed rung if the link were its bound. The bytes of dense rungs
// follow from their width; a sparse rung has at most five times those of the next one.
double CodecController::PredictedSeconds(size_t rung) const {
  const double factor = ladder_[rung].push.sparse() ? 5 : ladder_[rung + 1].push.sparse() ? 10 : 2;
  RECON_CHECK(!measured_[rung + 1].windows.empty(), "what was not measured tells nothing");
  const Window& next = measured_[rung + 1].windows.back();
  return std::max(next.push_bytes, next.pull_bytes) * factor / link_bytes_per_second_;
}

size_t CodecController::Explore(std::string* why) {
  // More compression, while something waits for it. For cores that are shared, too, but nothing is left out
  // then: shared memory gains little by fewer bytes, and the model loses.
  for (size_t rung = 0; rung < LossiestAllowed(); ++rung) {
    if (measured_[rung].windows.empty() || !measured_[rung + 1].windows.empty()) continue;
    const bool helps_cores = cpu_wait_ > kContended && !ladder_[rung + 1].push.sparse();
    if (!Stalled(rung) && !helps_cores) continue;
    *why = "tries more compression";
    return rung + 1;
  }
  const double lowest = LowestCost();
  for (size_t rung = 0; rung < LossiestAllowed(); ++rung) {
    Measured& below = measured_[rung];
    if (!below.windows.empty() || below.hopeless || measured_[rung + 1].windows.empty()) continue;
    if (Cost(rung + 1) > kClose * lowest) continue;
    if (PredictedSeconds(rung) < 3 * lowest) {
      *why = "tries less compression";
      return rung;
    }
    below.hopeless = true;
  }
  // Those that come close, the least measured first.
  size_t next = rung_;
  for (size_t rung = 0; rung <= LossiestAllowed(); ++rung) {
    const size_t windows = measured_[rung].windows.size();
    if (windows == 0 || windows >= kWindowsEach || Cost(rung) > kClose * lowest) continue;
    if (next == rung_ && measured_[rung_].windows.size() >= kWindowsEach) next = rung;
    if (windows < measured_[next].windows.size()) next = rung;
  }
  *why = "compares the closest";
  return next;
}

// All but what is known of rung_.
void CodecController::Forget(const Window& newest) {
  settled_ = false;
  for (size_t rung = 0; rung < measured_.size(); ++rung) {
    if (rung != rung_) measured_[rung] = Measured();
  }
  measured_[rung_].windows = {newest};
}

bool CodecController::Observe(const Window& window) {
  std::deque<Window>& here = measured_[rung_].windows;
  here.push_back(window);
  if (here.size() > kWindowsEach) here.pop_front();
  cpu_wait_ = cpu_wait_ == 0 ? window.cpu_wait : (3 * cpu_wait_ + window.cpu_wait) / 4;
  link_bytes_per_second_ = std::max(window.link_bytes_per_second, link_bytes_per_second_ * kLinkForgets);
  const std::string numbers = absl::StrFormat(
      "a step takes %.1f ms: computing %.1f, waiting for pushes %.1f; encoding beside it %.1f, link %.1f "
      "MB/s%s",
      1e3 * window.step_seconds, 1e3 * window.compute_seconds, 1e3 * window.stall_seconds,
      1e3 * window.encode_seconds, link_bytes_per_second_ / 1e6,
      cpu_wait_ > kContended ? ", cores are shared" : "");
  if (window.no_network != no_network_) {
    no_network_ = window.no_network;
    settled_ = false;
  }
  if (rung_ > LossiestAllowed()) {
    return MoveTo(LossiestAllowed(), "the workers share memory with the server: nothing is left out");
  }
  if (window.residual_ratio > kResidualRatioMax && rung_ > 0) {
    lossiest_ = rung_ - 1;
    settled_ = false;
    return MoveTo(lossiest_, absl::StrFormat("what was kept back is %.0f times a push: less compression",
                                             window.residual_ratio));
  }
  if (settled_) {
    const double cost = Cost(rung_);
    const bool drifted = cost > kDrift * settled_cost_ || cost * kDrift < settled_cost_;
    if (!drifted && ++windows_settled_ < windows_until_probe_) return false;
    windows_until_probe_ = drifted ? kFirstProbeAfter : std::min(2 * windows_until_probe_, kLastProbeAfter);
    if (drifted) link_bytes_per_second_ = window.link_bytes_per_second;  // The link may be another one.
    Forget(window);
  }
  std::string why;
  const size_t next = Explore(&why);
  const bool known = next == rung_ && here.size() >= kWindowsEach;
  if (!known) {
    const bool stay = ++windows_visited_ < kWindowsPerVisit && Cost(rung_) <= kClose * LowestCost();
    return stay ? false : MoveTo(next, absl::StrCat(numbers, ": ", why));
  }
  const size_t best = Best();
  settled_ = true;
  windows_settled_ = 0;
  settled_cost_ = Cost(best);
  return MoveTo(best,
                absl::StrFormat("%s; the fastest within 3 %% is %s", numbers, ladder_[best].push.ToString()));
}

}  // namespace recon
