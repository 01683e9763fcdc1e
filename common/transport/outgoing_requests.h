#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/base/byte_chain.h"
#include "common/base/mutex.h"
#include "common/transport/send_window.h"

namespace recon {

// The requests to one server that it has neither taken nor answered. Each waits until the window
// admits it, is sent, and leaves the window when it is taken or answered.
//
// Threads: thread-safe. `send` is called for one request after the other, in the window's order, on any
// thread that adds or releases requests of any connection of the window; it must not wait; it may release
// requests. Ownership: waiting requests keep it alive; End() lets go of them.
class OutgoingRequests : public std::enable_shared_from_this<OutgoingRequests> {
 public:
  using Send = std::function<void(uint64_t call, const ByteChain& message)>;
  OutgoingRequests(std::shared_ptr<SendWindow> window, Send send);

  // `message`: as WrapRequest() makes it. False, and nothing is sent, after End().
  bool Add(uint64_t call, ByteChain message);
  // It was taken or answered. Nothing if it is not here.
  void Release(uint64_t call);
  // It is not sent, if it waits still.
  void Drop(uint64_t call);
  // No more come: all leave the window. A request that was being sent may be sent still.
  void End();

 private:
  struct Request {
    uint64_t place = 0;
    ByteChain unsent;  // Empty once it is admitted.
  };

  void Admit(uint64_t call);
  // Takes it out if `wanted` says so of it.
  void Leave(uint64_t call, bool (*wanted)(const Request&));

  const std::shared_ptr<SendWindow> window_;
  const Send send_;

  Mutex mu_;
  absl::flat_hash_map<uint64_t, Request> requests_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace recon
