#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "server/sync/staleness_gate.h"

namespace recon {

// Replies to pushes that wait for the gate, each under a number that its owner gives it.
//
// Pure: no clock, `now` and deadlines are arguments; not thread-safe.
class ReplyQueue {
 public:
  using Ticket = uint64_t;

  // The reply to a push of `step`; it comes back from TakeReleased() or TakeExpired() once. No other with
  // this ticket may be waiting.
  void Wait(Ticket ticket, uint64_t step, absl::Time deadline);
  void Cancel(Ticket ticket) { waiting_.erase(ticket); }
  // Those that may go out now.
  std::vector<Ticket> TakeReleased(const StalenessGate& gate);
  // Those whose deadline has come.
  std::vector<Ticket> TakeExpired(absl::Time now);
  size_t size() const { return waiting_.size(); }

 private:
  struct Reply {
    uint64_t step;
    absl::Time deadline;
  };

  template <typename Ready>
  std::vector<Ticket> Take(Ready ready);

  std::map<Ticket, Reply> waiting_;
};

}  // namespace recon
