#include "common/transport/send_window.h"

#include <algorithm>
#include <utility>

#include "common/base/limits.h"

namespace recon {

size_t FrameBytesFor(size_t servers) {
  if (servers == 1) return limits::kFrameTargetBytes;
  return std::max(limits::kFrameTargetBytesOfAll / servers, limits::kFrameTargetBytesMin);
}

SendWindow::SendWindow(size_t servers, size_t connections)
    : frame_bytes_(FrameBytesFor(servers)),
      bytes_over_network_(
          std::max({limits::kRequestBytesInFlight / servers, limits::kRequestBytesInFlightMin,
                    servers * connections * limits::kRequestFramesInFlightMin * frame_bytes_})),
      bytes_on_one_machine_(servers > 1
                                ? bytes_over_network_
                                : std::max(connections, limits::kRequestFramesOnOneMachine) * frame_bytes_),
      bytes_max_(bytes_over_network_) {}

void SendWindow::SetOneMachine(bool one_machine) {
  {
    MutexLock lock(&mu_);
    bytes_max_ = one_machine ? bytes_on_one_machine_ : bytes_over_network_;
  }
  AdmitNext();
}

uint64_t SendWindow::NewPlace() {
  MutexLock lock(&mu_);
  return next_place_++;
}

void SendWindow::Enter(uint64_t place, size_t charge, absl::AnyInvocable<void()> admitted) {
  {
    MutexLock lock(&mu_);
    waiting_.push_back({place, charge, std::move(admitted)});
  }
  AdmitNext();
}

void SendWindow::Leave(uint64_t place) {
  absl::AnyInvocable<void()> dropped;  // Its owners are released without the lock.
  {
    MutexLock lock(&mu_);
    const auto found = under_way_.find(place);
    if (found != under_way_.end()) {
      bytes_ -= found->second;
      under_way_.erase(found);
    } else {
      const auto is_place = [place](const Waiting& waiting) { return waiting.place == place; };
      const auto at = std::find_if(waiting_.begin(), waiting_.end(), is_place);
      if (at == waiting_.end()) return;
      dropped = std::move(at->admitted);
      waiting_.erase(at);
    }
  }
  AdmitNext();
}

void SendWindow::AdmitNext() {
  bool first = true;
  while (true) {
    absl::AnyInvocable<void()> admitted;
    {
      MutexLock lock(&mu_);
      if (first && admitting_) return;  // Whoever does it looks again.
      first = false;
      // A single one always may.
      admitting_ =
          !waiting_.empty() && (under_way_.empty() || bytes_ + waiting_.front().charge <= bytes_max_);
      if (!admitting_) return;
      Waiting& next = waiting_.front();
      under_way_[next.place] = next.charge;
      bytes_ += next.charge;
      admitted = std::move(next.admitted);
      waiting_.pop_front();
    }
    admitted();
  }
}

}  // namespace recon
