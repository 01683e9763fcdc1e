#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/codec/codec_spec.h"
#include "common/codec/wire_format.h"

namespace recon {

// Chooses how much a job compresses: the least lossy rung of a ladder whose steps take at most 3 % longer
// than those of the fastest. It measures rungs instead of modelling them, in windows of steps of all workers
// together: what one worker pushes all others pull, and all share the server, so that none of them could tell
// what its own codec costs.
//
// It begins with FP16, tries more compression while steps wait for the link or for cores, and less if the
// bytes would pass at the link rate that was seen. Rungs that come close are measured in turn before one is
// settled on; they are measured again when a step's time drifts, and now and then, ever more rarely.
//
// Pure: no clock; not thread-safe.
class CodecController {
 public:
  struct Rung {
    CodecSpec push;
    CodecId pull = CodecId::kFp32;
  };
  // What a worker's step was like, over a window: the mean of all workers that computed.
  struct Window {
    double step_seconds = 0;           // From asking for a place in the pipeline to the gradient,
    double compute_seconds = 0;        // of which computing,
    double stall_seconds = 0;          // and waiting for pushes under way.
    double encode_seconds = 0;         // Beside them.
    double push_bytes = 0;             // Payload of a push
    double pull_bytes = 0;             // and of its reply.
    double link_bytes_per_second = 0;  // In one direction, as far as pushes used it; 0 = unknown.
    double cpu_wait = 0;               // Seconds threads waited for a core, for each second they had one.
    bool no_network = false;           // All workers share memory with the server.
    double residual_ratio = 0;         // Norm of what was kept back over that of what was sent, the largest.
  };

  // Without the rungs whose codec is refused (bit i: codec i); FP32 never is.
  explicit CodecController(uint32_t refused_codecs = 0);

  const Rung& rung() const { return ladder_[rung_]; }
  // Its place on the ladder, 0 = FP32.
  size_t rung_number() const { return rung_; }
  // Whether it has measured what it wanted to, and stays until something changes.
  bool settled() const { return settled_; }
  // Why it is this one, in a sentence with the numbers.
  const std::string& reason() const { return reason_; }

  // Forgets what it has measured, and begins again from rung().
  void Restart();

  // Takes the window that was measured on rung(); true if rung() has changed.
  bool Observe(const Window& window);

 private:
  struct Measured {
    std::deque<Window> windows;  // The last few.
    bool hopeless = false;       // The link is too slow for it; not measured.
  };

  // Seconds a step; infinite where nothing was measured.
  double Cost(size_t rung) const;
  double LowestCost() const;
  // Whether communication is not hidden behind computing.
  bool Stalled(size_t rung) const;
  // The last rung that may be taken.
  size_t LossiestAllowed() const;
  double PredictedSeconds(size_t rung) const;
  size_t Best() const;
  // The rung to measure next, or the current one if all is known.
  size_t Explore(std::string* why);
  void Forget(const Window& newest);
  bool MoveTo(size_t rung, std::string reason);

  std::vector<Rung> ladder_;
  std::vector<Measured> measured_;
  size_t rung_ = 0;
  size_t lossiest_ = 0;  // The residual's norm forbids rungs beyond it.
  bool no_network_ = false;
  bool settled_ = false;
  int windows_visited_ = 0;  // Since rung_ changed.
  int windows_settled_ = 0;
  int windows_until_probe_;
  double settled_cost_ = 0;
  double cpu_wait_ = 0;               // Smoothed.
  double link_bytes_per_second_ = 0;  // The highest that was seen, slowly forgotten.
  std::string reason_;
};

}  // namespace recon
