#pragma once

#include <algorithm>
#include <cstddef>

#include "common/base/limits.h"

namespace recon {

// How a worker cuts what it sends to one of `servers` servers. Its link is theirs together: with S of them a
// frame of the same size takes S times as long there and back, and so a synchronous step longer to get going
// and to end; and so many bytes more wait in the network.
struct RequestWindow {
  explicit RequestWindow(size_t servers)
      : frame_bytes(std::max(limits::kFrameTargetBytes / servers, limits::kFrameTargetBytesMin)),
        bytes(std::max(limits::kRequestBytesInFlight / servers,
                       limits::kRequestFramesInFlightMin * frame_bytes)) {}

  size_t frame_bytes;  // Payload of a frame, about.
  size_t bytes;        // Of requests that are neither taken nor answered.
};

}  // namespace recon
