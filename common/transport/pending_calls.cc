#include "common/transport/pending_calls.h"

#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace recon {

uint64_t PendingCalls::Add(uint64_t connection, Transport::Done done) {
  RECON_CHECK(done != nullptr);
  MutexLock lock(&mu_);
  const bool is_new = calls_.try_emplace(next_, Pending{connection, std::move(done)}).second;
  RECON_CHECK(is_new, "two calls have one number");
  return next_++;
}

bool PendingCalls::Assign(uint64_t call, uint64_t connection) {
  MutexLock lock(&mu_);
  const auto found = calls_.find(call);
  if (found == calls_.end()) return false;
  found->second.connection = connection;
  return true;
}

void PendingCalls::Finish(uint64_t call, absl::StatusOr<ByteChain> reply) {
  std::optional<Transport::Done> done = Take(call);
  if (done.has_value()) (*done)(std::move(reply));
}

std::optional<Transport::Done> PendingCalls::Take(uint64_t call) {
  MutexLock lock(&mu_);
  const auto found = calls_.find(call);
  if (found == calls_.end()) return std::nullopt;
  std::optional<Transport::Done> done = std::move(found->second.done);
  calls_.erase(found);
  return done;
}

bool PendingCalls::Has(uint64_t call) const {
  MutexLock lock(&mu_);
  return calls_.count(call) > 0;
}

std::vector<uint64_t> PendingCalls::FailAll(uint64_t connection, const absl::Status& why) {
  std::vector<uint64_t> calls;
  std::vector<Transport::Done> failed;
  {
    MutexLock lock(&mu_);
    for (auto it = calls_.begin(); it != calls_.end();) {
      const auto next = std::next(it);
      if (it->second.connection == connection) {
        calls.push_back(it->first);
        failed.push_back(std::move(it->second.done));
        calls_.erase(it);
      }
      it = next;
    }
  }
  for (Transport::Done& done : failed) done(why);
  return calls;
}

}  // namespace recon
