#include "server/data_plane/waiting_replies.h"

#include <set>

#include "common/base/check.h"
#include "common/base/limits.h"

namespace recon {

void WaitingReplies::Add(const OperationPtr& op, absl::Time now, absl::Time deadline) {
  const uint64_t step = op->frame.header.step;
  op->Enter(Operation::Stage::kWaiting);
  op->ticket = next_ticket_++;
  op->waiting_since = now;
  waiting_[op->ticket] = op;
  // The gate releases no reply of a synchronous job: closings do.
  queue_.Wait(op->ticket, book_.gate().synchronous() ? UINT64_MAX : step, deadline);
  if (!book_.gate().synchronous()) return;
  op->closings_left = 0;
  for (const uint32_t shard : op->shards) {
    if (book_.Closed(step, shard)) continue;
    by_closing_[{step, shard}].push_back(op);
    ++op->closings_left;
  }
}

Operations WaitingReplies::Take(const std::function<bool(const Operation&)>& wanted) {
  Operations taken;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (!wanted(*it->second)) {
      ++it;
      continue;
    }
    queue_.Cancel(it->first);
    taken.push_back(std::move(it->second));
    it = waiting_.erase(it);
  }
  return taken;
}

Operations WaitingReplies::TakeOf(WorkerId worker) {
  return Take([worker](const Operation& op) { return op.worker == worker; });
}

Operations WaitingReplies::TakeAll() {
  return Take([](const Operation& /*op*/) { return true; });
}

void WaitingReplies::NoteClosing(const StepClosing& closing) {
  const std::set<Contributor> counted(closing.contributors.begin(), closing.contributors.end());
  for (const uint32_t shard : closing.shards) {
    const auto awaiting = by_closing_.find({closing.step, shard});
    if (awaiting == by_closing_.end()) continue;
    for (OperationPtr& op : awaiting->second) {
      if (waiting_.count(op->ticket) == 0) continue;  // It was answered for another reason.
      const bool counts = counted.count({op->worker, op->incarnation}) > 0;
      RECON_CHECK_GT(op->closings_left, 0);
      if (counts && --op->closings_left > 0) continue;
      queue_.Cancel(op->ticket);
      waiting_.erase(op->ticket);
      (counts ? released_ : dropped_).push_back(std::move(op));
    }
    by_closing_.erase(awaiting);
  }
}

void WaitingReplies::ForgetBefore(uint64_t frontier) {
  by_closing_.erase(by_closing_.begin(), by_closing_.lower_bound({frontier, 0}));
}

void WaitingReplies::MoveTo(Operations* taken, const std::vector<ReplyQueue::Ticket>& tickets) {
  for (const ReplyQueue::Ticket ticket : tickets) {
    const auto found = waiting_.find(ticket);
    RECON_CHECK(found != waiting_.end(), "a ticket without its operation");
    taken->push_back(std::move(found->second));
    waiting_.erase(found);
  }
}

Operations WaitingReplies::TakeReleased() {
  Operations released = std::exchange(released_, {});
  MoveTo(&released, queue_.TakeReleased(book_.gate()));
  RECON_CHECK_EQ(queue_.size(), waiting_.size());
  return released;
}

Operations WaitingReplies::TakeExpired(absl::Time now) {
  Operations expired;
  MoveTo(&expired, queue_.TakeExpired(now));
  return expired;
}

void WaitingReplies::SayTaken(absl::Time now) {
  for (const auto& [ticket, op] : waiting_) {
    if (!op->in_step || now - op->waiting_since < limits::kInStepPatience) continue;
    op->in_step = false;
    op->taken();
  }
}

}  // namespace recon
