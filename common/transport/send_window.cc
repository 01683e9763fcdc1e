#include "common/transport/send_window.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/limits.h"

namespace recon {

size_t FrameBytesFor(size_t servers) {
  RECON_CHECK_GE(servers, 1);
  if (servers == 1) return limits::kFrameTargetBytes;
  return std::max(limits::kFrameTargetBytesOfAll / servers, limits::kFrameTargetBytesMin);
}

SendWindow::SendWindow(size_t servers, size_t connections)
    : servers_(servers), connections_(connections), frame_bytes_(FrameBytesFor(servers)) {}

size_t SendWindow::BytesMax() const {
  const size_t frames_min = limits::kRequestFramesInFlightMin;
  if (one_machine_ && servers_ == 1) {
    const size_t share = limits::kRequestFramesOnOneMachine / workers_;
    return std::max(std::min(connections_, share), frames_min) * frame_bytes_;
  }
  return std::max({limits::kRequestBytesInFlight / servers_, limits::kRequestBytesInFlightMin,
                   servers_ * std::max(connections_, frames_min) * frame_bytes_});
}

void SendWindow::SetOneMachine(bool one_machine) {
  {
    MutexLock lock(&mu_);
    one_machine_ = one_machine;
  }
  AdmitNext();
}

void SendWindow::ShareWith(size_t workers) {
  {
    MutexLock lock(&mu_);
    const size_t before = std::exchange(workers_, std::max<size_t>(workers, 1));
    if (workers_ == before) return;
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
    RECON_CHECK_LT(place, next_place_);
    RECON_CHECK(under_way_.count(place) == 0, "a place is entered twice");
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
      RECON_CHECK_GE(bytes_, found->second);
      bytes_ -= found->second;
      under_way_.erase(found);
      RECON_CHECK(!under_way_.empty() || bytes_ == 0, "nothing is under way, and has bytes");
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
          !waiting_.empty() && (under_way_.empty() || bytes_ + waiting_.front().charge <= BytesMax());
      if (!admitting_) return;
      Waiting& next = waiting_.front();
      const bool is_new = under_way_.insert({next.place, next.charge}).second;
      RECON_CHECK(is_new, "a request is admitted twice");
      bytes_ += next.charge;
      admitted = std::move(next.admitted);
      waiting_.pop_front();
    }
    admitted();
  }
}

}  // namespace recon
