#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/data_plane/operation.h"
#include "server/sync/reply_queue.h"
#include "server/sync/step_book.h"

namespace recon {

// Replies to pushes that wait for other workers: those of bounded jobs until the gate lets them go, those of
// synchronous jobs until the step is closed for each of their shards. A step that is closed without a push
// drops its reply: the worker is told so.
//
// Not thread-safe: the caller serializes. No clock: `now` is an argument.
class WaitingReplies {
 public:
  // `book` must outlive it.
  explicit WaitingReplies(const StepBook* book) : book_(*book) {}

  size_t size() const { return waiting_.size(); }
  // Until `deadline` at the latest.
  void Add(const OperationPtr& op, absl::Time now, absl::Time deadline);
  // Those that `wanted` says; all of one worker; all.
  Operations Take(const std::function<bool(const Operation&)>& wanted);
  Operations TakeOf(WorkerId worker);
  Operations TakeAll();
  // A step is closed for some shards: whoever waited for the last of them is released, or dropped if its push
  // does not count.
  void NoteClosing(const StepClosing& closing);
  // Nobody waits for steps before `frontier` any more: who did was answered for other reasons.
  void ForgetBefore(uint64_t frontier);
  void ForgetClosings() { by_closing_.clear(); }

  // Since the last call: whose steps are closed, or the gate lets go.
  Operations TakeReleased();
  Operations TakeDropped() { return std::exchange(dropped_, {}); }
  Operations TakeExpired(absl::Time now);
  // Requests whose `taken` has waited for long enough hear it; it runs here, as a reply may go out as soon as
  // it is released.
  void SayTaken(absl::Time now);

 private:
  void MoveTo(Operations* taken, const std::vector<ReplyQueue::Ticket>& tickets);

  const StepBook& book_;
  ReplyQueue queue_;
  std::map<ReplyQueue::Ticket, OperationPtr> waiting_;
  ReplyQueue::Ticket next_ticket_ = 0;
  // By the step and shard for whose closing they wait; some may not wait any more.
  std::map<std::pair<uint64_t, uint32_t>, Operations> by_closing_;
  Operations released_;
  Operations dropped_;
};

}  // namespace recon
