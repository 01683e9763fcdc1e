#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/codec/wire_format.h"
#include "worker/encode/codec_spec.h"

namespace recon {

// Chooses how much to compress: the least lossy rung of a ladder whose steps are as fast, within 3 %, as
// those of the fastest. It measures rungs instead of modelling them: a window of steps on one rung gives the
// time of a step there, whatever it is made of (computing, encoding, the link, the server). The share of a
// window that the training thread waited for pushes tells which neighbour is worth a window: a more
// compressed one while there is waiting, a less compressed one if its bytes would pass at the link rate that
// was seen. Neighbours are measured again when a step's time drifts by a quarter, and now and then, ever more
// rarely.
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
    double seconds = 0;           // From its first step's start to its last one's end.
    double compute_seconds = 0;   // Spent on gradients,
    double encode_seconds = 0;    // on encoding them,
    double stall_seconds = 0;     // and by the training thread waiting for pushes under way.
    double exchange_seconds = 0;  // From sending a push to its reply.
    uint64_t bytes = 0;           // Payloads of pushes and replies.
    double residual_ratio = 0;    // Norm of what was kept back over that of what was sent, last push.
  };

  CodecController();

  const Rung& rung() const { return ladder_[rung_]; }
  // Why it is this one, in a sentence with the numbers.
  const std::string& reason() const { return reason_; }

  // Takes the window that was measured on rung(); true if rung() has changed.
  bool Observe(const Window& window);

 private:
  struct Measured {
    double step_seconds = 0;  // 0 = not yet.
    double bytes_per_step = 0;
    bool hopeless = false;  // The link is too slow for it; not measured.
  };

  bool MoveTo(size_t rung, std::string reason);
  size_t Best() const;
  double PredictedSeconds(size_t rung) const;

  const std::vector<Rung> ladder_;
  std::vector<Measured> measured_;
  size_t rung_;
  size_t lossiest_;  // The residual's norm forbids rungs beyond it.
  bool settled_ = false;
  int windows_settled_ = 0;
  int windows_until_probe_;
  double settled_step_seconds_ = 0;
  double link_bytes_per_second_ = 0;  // The highest that was seen, slowly forgotten.
  std::string reason_;
};

}  // namespace recon
