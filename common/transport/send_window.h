#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "common/base/mutex.h"
#include "common/base/pool_allocator.h"

namespace recon {

// Payload of a frame, about, that goes to one of `servers` servers. A worker's link is theirs together: with
// S of them a frame of the same size takes S times as long there and back, and so a synchronous step longer
// to get going and to end.
size_t FrameBytesFor(size_t servers);

// What a worker has sent, to all its servers, and they have neither taken nor answered: so many bytes at
// most. Requests enter in the order in which they asked, whatever their servers: where one server is slower,
// the others get no more than it does, and all are done at about the same time. The callers are transports:
// those over gRPC share the worker's window; one over shared memory or UCX has its own.
//
// Threads: thread-safe. Callbacks run one after the other, on any thread that enters or leaves, perhaps
// before Enter() returns, without the window's lock.
class SendWindow {
 public:
  // Of `connections` connections to each of `servers` servers.
  SendWindow(size_t servers, size_t connections);
  SendWindow(const SendWindow&) = delete;
  SendWindow& operator=(const SendWindow&) = delete;

  size_t frame_bytes() const { return frame_bytes_; }

  // Whether what is sent stays on this machine; at first it does not. A single server's window is smaller
  // then, and the smaller the more workers there are.
  void SetOneMachine(bool one_machine);
  // How many workers the server has, this one among them; at first one. 0 counts as 1.
  void ShareWith(size_t workers);

  // A name for what enters next, so that its callback can be told from others.
  uint64_t NewPlace();
  // Calls `admitted` when the request may be sent; `charge` is its RequestCharge().
  void Enter(uint64_t place, size_t charge, absl::AnyInvocable<void()> admitted);
  // The request was taken, answered or given up, or waits no longer. Nothing if it is not here.
  void Leave(uint64_t place);

 private:
  struct Waiting {
    uint64_t place;
    size_t charge;
    absl::AnyInvocable<void()> admitted;
  };

  size_t BytesMax() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AdmitNext();

  const size_t servers_, connections_;
  const size_t frame_bytes_;

  Mutex mu_;
  bool one_machine_ ABSL_GUARDED_BY(mu_) = false;
  size_t workers_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t next_place_ ABSL_GUARDED_BY(mu_) = 1;
  PooledDeque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, size_t> under_way_ ABSL_GUARDED_BY(mu_);
  size_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool admitting_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace recon
