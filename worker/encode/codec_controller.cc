#include "worker/encode/codec_controller.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace recon {
namespace {

constexpr size_t kFirstRung = 1;
// Steps this much slower than the fastest rung's are as good, if less is lost.
constexpr double kAsFast = 1.03;
// A training thread that waits for less than this share of a step has its communication hidden.
constexpr double kHiddenShare = 0.04;
constexpr double kDrift = 1.25;
constexpr double kResidualRatioMax = 100;
constexpr int kFirstProbeAfter = 40;
constexpr int kLastProbeAfter = 640;
constexpr double kLinkForgets = 0.99;

CodecController::Rung MakeRung(CodecKind kind, double ratio, CodecId pull) {
  CodecController::Rung rung;
  rung.push.kind = kind;
  rung.push.ratio = ratio;
  rung.pull = pull;
  return rung;
}

}  // namespace

CodecController::CodecController()
    : ladder_({MakeRung(CodecKind::kFp32, 1, CodecId::kFp32), MakeRung(CodecKind::kFp16, 1, CodecId::kFp16),
               MakeRung(CodecKind::kTopK, 0.05, CodecId::kFp16),
               MakeRung(CodecKind::kTopK, 0.01, CodecId::kFp16),
               MakeRung(CodecKind::kTopK, 0.001, CodecId::kFp16)}),
      measured_(ladder_.size()),
      rung_(kFirstRung),
      lossiest_(ladder_.size() - 1),
      windows_until_probe_(kFirstProbeAfter),
      reason_("to begin with") {}

bool CodecController::MoveTo(size_t rung, std::string reason) {
  reason_ = std::move(reason);
  const bool changed = rung != rung_;
  rung_ = rung;
  return changed;
}

size_t CodecController::Best() const {
  double fastest = 0;
  for (const Measured& measured : measured_) {
    if (measured.step_seconds > 0 && (fastest == 0 || measured.step_seconds < fastest)) {
      fastest = measured.step_seconds;
    }
  }
  for (size_t rung = 0; rung <= lossiest_; ++rung) {
    const double seconds = measured_[rung].step_seconds;
    if (seconds > 0 && seconds <= kAsFast * fastest) return rung;
  }
  return lossiest_;
}

// What a step would take on the less compressed neighbour if the link were its bound. The bytes of dense
// rungs follow from their width; a sparse rung's neighbour has at most five times its bytes.
double CodecController::PredictedSeconds(size_t rung) const {
  const double factor = ladder_[rung].push.sparse() ? 5 : ladder_[rung + 1].push.sparse() ? 10 : 2;
  return measured_[rung + 1].bytes_per_step * factor / link_bytes_per_second_;
}

bool CodecController::Observe(const Window& window) {
  Measured& here = measured_[rung_];
  const double step_seconds = window.seconds / window.steps;
  here.step_seconds = here.step_seconds == 0 ? step_seconds : (here.step_seconds + step_seconds) / 2;
  here.bytes_per_step = static_cast<double>(window.bytes) / window.steps;
  if (window.exchange_seconds > 0) {
    const double rate = static_cast<double>(window.bytes) / window.exchange_seconds;
    link_bytes_per_second_ = std::max(rate, link_bytes_per_second_ * kLinkForgets);
  }
  const double stalled = window.stall_seconds / window.seconds;
  const std::string numbers = absl::StrFormat(
      "a step takes %.1f ms: computing %.1f, encoding %.1f, waiting for the link %.1f (%.1f MB/s)",
      1e3 * step_seconds, 1e3 * window.compute_seconds / window.steps,
      1e3 * window.encode_seconds / window.steps, 1e3 * window.stall_seconds / window.steps,
      link_bytes_per_second_ / 1e6);
  if (window.residual_ratio > kResidualRatioMax && rung_ > 0) {
    lossiest_ = rung_ - 1;
    settled_ = false;
    return MoveTo(lossiest_, absl::StrFormat("what was kept back is %.0f times a push: less compression",
                                             window.residual_ratio));
  }
  if (settled_) {
    const bool drifted =
        step_seconds > kDrift * settled_step_seconds_ || step_seconds * kDrift < settled_step_seconds_;
    settled_step_seconds_ = (7 * settled_step_seconds_ + step_seconds) / 8;
    if (!drifted && ++windows_settled_ < windows_until_probe_) return false;
    windows_until_probe_ = drifted ? kFirstProbeAfter : std::min(2 * windows_until_probe_, kLastProbeAfter);
    settled_ = false;
    for (size_t rung = 0; rung < measured_.size(); ++rung) {
      if (rung != rung_) measured_[rung] = Measured();
    }
  }
  if (stalled > kHiddenShare && rung_ < lossiest_ && measured_[rung_ + 1].step_seconds == 0) {
    return MoveTo(rung_ + 1, numbers + ": tries more compression");
  }
  // From here on the rungs above the fastest one are of no use; is one below it as fast?
  const size_t best = Best();
  if (best > 0) {
    Measured& below = measured_[best - 1];
    if (below.step_seconds == 0 && !below.hopeless) {
      if (PredictedSeconds(best - 1) < 3 * measured_[best].step_seconds) {
        return MoveTo(best - 1, numbers + ": tries less compression");
      }
      below.hopeless = true;
    }
  }
  settled_ = true;
  windows_settled_ = 0;
  settled_step_seconds_ = measured_[best].step_seconds;
  return MoveTo(best, absl::StrFormat("%s; the fastest codec within 3 %% is %s", numbers,
                                      ladder_[best].push.ToString()));
}

}  // namespace recon
