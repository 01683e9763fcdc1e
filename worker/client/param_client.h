#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/codec/frame.h"
#include "grpcpp/channel.h"
#include "grpcpp/generic/generic_stub.h"

namespace recon {

// Calls of the Param service with raw frames. Thread-safe.
class ParamClient {
 public:
  explicit ParamClient(const std::shared_ptr<grpc::Channel>& channel) : stub_(channel) {}

  // Sends the frames and waits for all replies: element i of the result answers frame i. Pull and Init keep
  // at most limits::kFramesInFlight under way; the frames of a push go out together, since none is answered
  // before a synchronous step has them all. Payloads of replies refer to the network's buffers. `deadline` is
  // for each frame. Errors are the server's; Unavailable or DeadlineExceeded when it cannot be reached.
  std::vector<absl::StatusOr<Frame>> CallAll(FrameKind kind, std::vector<Frame> frames,
                                             absl::Duration deadline);

 private:
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub_;
};

}  // namespace recon
