#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/codec/wire_format.h"
#include "worker/encode/codec_spec.h"

namespace recon {

// Chooses how much to compress: the least lossy rung of a ladder whose steps cost at most 3 % more than those
// of the cheapest. It measures rungs instead of modelling them, in windows of steps. A rung's cost is the
// time of a step, whatever it is made of: computing, encoding, the link, the server. Where processes wait for
// cores, that time is mostly noise of the scheduler; there the cost is the CPU time the process needs for a
// step, times how long it waits for it, and the waiting for the link.
//
// What a worker pushes all others pull. So a rung costs at least what a step would take if every worker used
// it: else one that sends more than the others would only see that it is no slower itself.
//
// It begins with FP16, tries more compression while steps wait for the link or for cores, and less if the
// bytes would pass at the link rate that was seen. Rungs that come close are measured in turn, several times,
// before one is settled on; they are measured again when its cost drifts, and now and then, ever more rarely.
//
// Pure: no clock; not thread-safe.
class CodecController {
 public:
  struct Rung {
    CodecSpec push;
    CodecId pull = CodecId::kFp32;
  };
  // What a window of steps was like. Seconds and bytes are sums over its steps.
  struct Window {
    int steps = 0;
    double seconds = 0;             // From its first step's start to its last one's end.
    double compute_seconds = 0;     // Spent on gradients,
    double encode_seconds = 0;      // on encoding them,
    double stall_seconds = 0;       // and by the training thread waiting for pushes under way.
    double exchange_seconds = 0;    // From sending a push to its reply.
    double cpu_seconds = 0;         // CPU time of the process,
    double cpu_wait_seconds = 0;    // and time its threads waited for a core.
    uint64_t push_bytes = 0;        // Payloads of pushes
    uint64_t pull_bytes = 0;        // and of their replies.
    uint64_t dense_pull_bytes = 0;  // What the replies would have with all values.
    uint32_t workers = 1;           // Of the job: each gets the others' changes.
    double residual_ratio = 0;      // Norm of what was kept back over that of what was sent, last push.
  };

  // Without the rungs whose codec is refused (bit i: codec i); FP32 never is.
  explicit CodecController(uint32_t refused_codecs = 0);

  const Rung& rung() const { return ladder_[rung_]; }
  // Why it is this one, in a sentence with the numbers.
  const std::string& reason() const { return reason_; }

  // Takes the window that was measured on rung(); true if rung() has changed.
  bool Observe(const Window& window);

 private:
  struct Measured {
    std::deque<Window> windows;  // The last few.
    bool hopeless = false;       // The link is too slow for it; not measured.
  };

  double Cost(size_t rung) const;  // Seconds a step; infinite where nothing was measured.
  double WaitOf(const Window& window) const;
  double CostOf(const Window& window) const;
  // Cost() without how long others make the process wait for cores: whether a rung itself has changed.
  double PlainCost(size_t rung) const;
  bool contended() const;
  bool Stalled(size_t rung) const;
  double PredictedSeconds(size_t rung) const;
  double LowestCost() const;
  size_t Best() const;
  // The rung to measure next, or the current one if all is known.
  size_t Explore(std::string* why);
  bool MoveTo(size_t rung, std::string reason);

  std::vector<Rung> ladder_;
  std::vector<Measured> measured_;
  size_t rung_ = 0;
  size_t lossiest_ = 0;  // The residual's norm forbids rungs beyond it.
  bool settled_ = false;
  int windows_visited_ = 0;  // Since rung_ changed.
  int windows_settled_ = 0;
  int windows_until_probe_;
  double settled_cost_ = 0;
  double wait_per_cpu_ = 0;           // Smoothed over all rungs.
  double link_bytes_per_second_ = 0;  // In one direction; the highest that was seen, slowly forgotten.
  std::string reason_;
};

}  // namespace recon
