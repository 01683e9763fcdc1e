#include "server/sync/reply_queue.h"

#include "common/base/check.h"

namespace recon {

void ReplyQueue::Wait(Ticket ticket, uint64_t step, absl::Time deadline) {
  const bool is_new = waiting_.insert({ticket, {step, deadline}}).second;
  RECON_CHECK(is_new, "two replies wait with one ticket");
}

template <typename Ready>
std::vector<ReplyQueue::Ticket> ReplyQueue::Take(Ready ready) {
  std::vector<Ticket> taken;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (!ready(it->second)) {
      ++it;
      continue;
    }
    taken.push_back(it->first);
    it = waiting_.erase(it);
  }
  return taken;
}

std::vector<ReplyQueue::Ticket> ReplyQueue::TakeReleased(const StalenessGate& gate) {
  return Take([&gate](const Reply& reply) { return gate.Open(reply.step); });
}

std::vector<ReplyQueue::Ticket> ReplyQueue::TakeExpired(absl::Time now) {
  return Take([now](const Reply& reply) { return reply.deadline <= now; });
}

}  // namespace recon
