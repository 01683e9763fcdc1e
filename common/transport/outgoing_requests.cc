#include "common/transport/outgoing_requests.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/pool_allocator.h"
#include "common/transport/envelope.h"

namespace recon {

OutgoingRequests::OutgoingRequests(std::shared_ptr<SendWindow> window, Send send)
    : window_(std::move(window)), send_(std::move(send)) {}

bool OutgoingRequests::Add(uint64_t call, ByteChain message) {
  const size_t charge = RequestCharge(message.size(), window_->frame_bytes());
  const uint64_t place = window_->NewPlace();
  {
    MutexLock lock(&mu_);
    if (ended_) return false;
    const bool is_new = requests_.try_emplace(call, Request{place, std::move(message)}).second;
    RECON_CHECK(is_new, "a request is added twice");
  }
  window_->Enter(place, charge, Pooled([self = shared_from_this(), call] { self->Admit(call); }));
  bool left;
  {
    MutexLock lock(&mu_);
    left = requests_.count(call) == 0;
  }
  if (left) window_->Leave(place);  // It may have left before it entered.
  return true;
}

void OutgoingRequests::Admit(uint64_t call) {
  ByteChain message;
  {
    MutexLock lock(&mu_);
    const auto found = requests_.find(call);
    if (found == requests_.end()) return;
    message = std::exchange(found->second.unsent, ByteChain());
    RECON_CHECK_GT(message.size(), 0, "a request is admitted twice");
  }
  send_(call, message);
}

void OutgoingRequests::Leave(uint64_t call, bool (*wanted)(const Request&)) {
  Request request;  // Its owners are released without the lock.
  {
    MutexLock lock(&mu_);
    const auto found = requests_.find(call);
    if (found == requests_.end() || !wanted(found->second)) return;
    request = std::move(found->second);
    requests_.erase(found);
  }
  window_->Leave(request.place);
}

void OutgoingRequests::Release(uint64_t call) {
  Leave(call, [](const Request&) { return true; });
}

void OutgoingRequests::Drop(uint64_t call) {
  Leave(call, [](const Request& request) { return request.unsent.size() > 0; });
}

void OutgoingRequests::End() {
  absl::flat_hash_map<uint64_t, Request> requests;
  {
    MutexLock lock(&mu_);
    ended_ = true;
    requests.swap(requests_);
  }
  for (const auto& [call, request] : requests) window_->Leave(request.place);
}

}  // namespace recon
