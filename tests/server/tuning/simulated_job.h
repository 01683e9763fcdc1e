#pragma once

#include <algorithm>
#include <map>
#include <string>

#include "server/tuning/codec_controller.h"

namespace recon {

// Four workers with one codec, whose computing and links are simple numbers: communication overlaps with
// computing, and what each pushes the three others pull.
struct SimulatedJob {
  double compute_ms = 20;
  double link_bytes_per_ms = 12'500;  // 100 Mbit/s.
  double latency_ms = 2;
  double params = 536'000;
  std::map<std::string, double> encode_ms = {};  // By codec; on the thread that computes.

  double EncodeMs(const CodecController::Rung& rung) const {
    const auto found = encode_ms.find(rung.push.ToString());
    return found == encode_ms.end() ? 0 : found->second;
  }
  double PushBytes(const CodecController::Rung& rung) const {
    return params * (rung.push.kind == CodecKind::kFp32   ? 4
                     : rung.push.kind == CodecKind::kFp16 ? 2
                                                          : rung.push.ratio * 3.3);
  }
  double PullBytes(const CodecController::Rung& rung) const {
    return rung.push.sparse() ? std::min(4 * PushBytes(rung), 2 * params) : PushBytes(rung);
  }
  double LinkMs(const CodecController::Rung& rung) const {
    return latency_ms + std::max(PushBytes(rung), PullBytes(rung)) / link_bytes_per_ms;
  }
  double StepMs(const CodecController::Rung& rung) const {
    return std::max(compute_ms + EncodeMs(rung), LinkMs(rung));
  }
};

}  // namespace recon
