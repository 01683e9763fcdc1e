// The steps that a worker takes part in, and which of them are not acknowledged.

#include <algorithm>

#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "worker/comm/session.h"

namespace recon {

uint64_t Session::FirstNew() const { return std::max(next_step_, first_allowed_step_); }

uint64_t Session::FirstUnacknowledged() const {
  return unacknowledged_.empty() ? FirstNew() : *unacknowledged_.begin();
}

bool Session::must_drain() const {
  MutexLock lock(&mu_);
  return MustDrain();
}

bool Session::MustDrain() const {
  if (unacknowledged_.empty()) return false;
  return FirstNew() - *unacknowledged_.begin() >= limits::kPipelineDepthMax;
}

std::optional<uint64_t> Session::TakeStep() {
  MutexLock lock(&mu_);
  if (MustDrain()) return std::nullopt;
  next_step_ = FirstNew();
  unacknowledged_.insert(next_step_);
  return next_step_++;
}

absl::StatusOr<uint64_t> Session::Rejoin(uint64_t step) {
  Backoff backoff;
  while (true) {
    RejoinRequest request;
    const Standing used = standing();
    *request.mutable_identity() = used.identity;
    {
      MutexLock lock(&mu_);
      request.set_next_step(FirstNew());
    }
    const absl::StatusOr<RejoinReply> reply = client_->Rejoin(request);
    if (!reply.ok()) {
      if (absl::IsAborted(reply.status())) return reply.status();
      RECON_RETURN_IF_ERROR(Recover(reply.status(), used, &backoff));
      continue;
    }
    MutexLock lock(&mu_);
    unacknowledged_.erase(step);
    unacknowledged_.insert(reply->step());
    next_step_ = std::max(next_step_, reply->step() + 1);
    return reply->step();
  }
}

void Session::SkipTo(uint64_t step) {
  MutexLock lock(&mu_);
  next_step_ = std::max(next_step_, step);
}

uint64_t Session::first_new_step() const {
  MutexLock lock(&mu_);
  return FirstNew();
}

void Session::ReportState(const WorkerStateReport& report) {
  MutexLock lock(&mu_);
  state_report_ = report;
}

WorkerStateReply Session::state() const {
  MutexLock lock(&mu_);
  return state_reply_;
}

void Session::Acknowledge(uint64_t step) {
  MutexLock lock(&mu_);
  unacknowledged_.erase(step);
  unreachable_since_ = absl::InfiniteFuture();
}

}  // namespace recon
