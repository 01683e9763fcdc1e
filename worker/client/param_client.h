#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/codec/frame.h"
#include "common/transport/transport.h"

namespace recon {

// Calls of the data plane with frames. Thread-safe.
class ParamClient {
 public:
  // `transport` must outlive the client.
  explicit ParamClient(Transport* transport) : transport_(transport) {}

  // Sends the frames, all together and in this order, and waits for all replies: element i of the result
  // answers frame i. Payloads of replies refer to the network's buffers. `deadline` is for all of them.
  // Errors are the server's; Unavailable or DeadlineExceeded when it cannot be reached.
  std::vector<absl::StatusOr<Frame>> CallAll(FrameKind kind, std::vector<Frame> frames,
                                             absl::Duration deadline);

 private:
  Transport* const transport_;
};

}  // namespace recon
