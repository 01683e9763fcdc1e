#pragma once

#include <memory>

namespace recon {

// gRPC 1.51 has at least two threads that wait for sockets and call back, and hands the waiting from one to
// the other with every event. On a machine of one or two cores that costs more than it brings: while this
// lives, one of the two sleeps. Elsewhere, and with other versions, it does nothing.
//
// Make it in main(), before any channel or server, which must be gone when it goes: a callback of gRPC's
// never ends until then. No callback of ours waits, so one thread is enough.
class PollerLimit {
 public:
  PollerLimit();
  // `cores` of the machine.
  explicit PollerLimit(unsigned cores);
  ~PollerLimit();
  // Whether a thread sleeps by now.
  bool HoldsThread() const;
  PollerLimit(const PollerLimit&) = delete;
  PollerLimit& operator=(const PollerLimit&) = delete;

 private:
  class SleepingCall;
  std::unique_ptr<SleepingCall> call_;  // Null: all threads work.
};

}  // namespace recon
