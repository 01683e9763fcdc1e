#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/base/byte_chain.h"
#include "common/base/ids.h"

namespace recon {

// The caller's end of a way for frames between a worker and a server; the message format is envelope.h's.
// It connects when it is first used, and anew after it was cut off. Requests that would be more than
// a window (send_window.h) lets under way wait here until others are taken or answered.
//
// Threads: thread-safe. `done` runs once, on any thread, perhaps before Call() returns; it must not block.
// Shutdown: the destructor ends the calls under way as if the connection had been lost.
class Transport {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<ByteChain> reply)>;

  virtual ~Transport() = default;

  // Sends `request`, whose owners keep its bytes as they are for as long as it takes. Never waits for the
  // network.
  // Returns the call's number. Errors are the server's, or Unavailable if the connection is lost.
  virtual uint64_t Call(const ByteChain& request, Done done) = 0;
  // Ends a call with `why`, if it is under way still: it is not sent any more, or its reply is dropped.
  virtual void Abandon(uint64_t call, const absl::Status& why) = 0;
  // Cuts the connection: the server has been silent for too long. Calls under way end as if it had been lost.
  virtual void Disconnect() = 0;
  // Memory for `bytes` of requests: what lies there the transport does not have to copy. It lasts as long as
  // the pointer, and what is in it must not change once a request has it. What is asked for in turn lies side
  // by side. Page-locked if the process uses a device (host_pinning.h). Null if other memory serves as well,
  // or there is none now.
  virtual std::shared_ptr<uint8_t[]> RequestMemory(size_t /*bytes*/) { return nullptr; }
  // Whether messages go through memory that is shared with the other end, at the moment.
  virtual bool SharesMemory() { return false; }
};

// The server's end hands every request to a handler. `done` runs once. `taken` runs before it, at most once,
// if the reply has to wait for others and the request needs no more care: its sender may then send more. Any
// thread.
using TakenCallback = absl::AnyInvocable<void()>;
// Of a request, and for its reply.
struct RequestContext {
  // The process that sent it, as its connection has shown (WorkerSecret); 0 if it has not.
  Incarnation sender;
  // Memory for `bytes` of the reply: what lies there the transport does not have to copy. It lasts as long as
  // the pointer; what is in it must not change once `done` has run. Null, itself or its result, if other
  // memory serves as well. Any thread.
  absl::AnyInvocable<std::shared_ptr<uint8_t[]>(size_t bytes)> allocate;
  // Whether the request's own bytes serve, too, once they have been read: nobody else looks at them.
  bool over_request = false;
  // Whether nobody here has read or written the request yet: no core has it in its cache.
  bool untouched = false;
};
using RequestHandler = std::function<void(const ByteChain& request, TakenCallback taken, Transport::Done done,
                                          RequestContext memory)>;

}  // namespace recon
