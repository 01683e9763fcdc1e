// Of ParamServer: which workers it takes pushes from, and whom the steps wait for.

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "server/data_plane/param_operation.h"
#include "server/data_plane/param_server.h"

namespace recon {

void ParamServer::Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) {
  Operations released;
  {
    MutexLock lock(&mu_);
    Session& session = sessions_[worker];
    if (session.number == 0 || session.incarnation != incarnation) {
      session.number = next_session_++;
      session.bytes_in_flight = 0;
      session.delivered.clear();
      session.next_begun = 0;
    }
    session.incarnation = incarnation;
    session.parked = false;
    session.first_step = 0;
    gate_.Know(worker, next_step);
    if (first_worker_ms_ == 0)
      first_worker_ms_ = absl::ToDoubleMilliseconds(ProcessUptime() - options_.began);
    closed_to_ = kLookAtAll;
    released = GateMoved();
  }
  AnswerReleased(std::move(released));
}

void ParamServer::NoteReady() {
  MutexLock lock(&mu_);
  if (ready_ms_ == 0) ready_ms_ = absl::ToDoubleMilliseconds(ProcessUptime() - options_.began);
}

void ParamServer::Expel(WorkerId worker) {
  Operations released;
  Operations expelled;
  {
    MutexLock lock(&mu_);
    // Before the steps that waited for it close: its splits are done again by others.
    expelled = ForgetContributions(worker);
    gate_.Forget(worker);
    sessions_.erase(worker);
    closed_to_ = kLookAtAll;
    released = GateMoved();
  }
  for (const OperationPtr& op : expelled) Finish(op, absl::FailedPreconditionError("the worker was evicted"));
  AnswerReleased(std::move(released));
}

void ParamServer::SetClusterEpoch(uint64_t epoch) {
  Operations waiting;
  {
    MutexLock lock(&mu_);
    cluster_epoch_ = epoch;
    // What they wait for may have been said to a server that has gone.
    waiting = TakeWaiting([](const Operation&) { return true; });
  }
  for (const OperationPtr& op : waiting) {
    Finish(op, absl::UnavailableError("a new cluster epoch has begun; ask again"));
  }
}

void ParamServer::SkipTo(uint64_t frontier) {
  Operations released;
  {
    MutexLock lock(&mu_);
    gate_.SkipTo(frontier);
    closed_to_ = kLookAtAll;
    released = GateMoved();
  }
  AnswerReleased(std::move(released));
}

void ParamServer::NoteAcknowledged(WorkerId worker, uint64_t next_step) {
  Operations released;
  {
    MutexLock lock(&mu_);
    gate_.Raise(worker, next_step);
    closed_to_ = kLookAtAll;
    released = GateMoved();
  }
  AnswerReleased(std::move(released));
}

uint64_t ParamServer::Activate(WorkerId worker, uint64_t next_step, bool resumes) {
  uint64_t step;
  Operations released;
  {
    MutexLock lock(&mu_);
    // Steps that are closed for some shards are not begun by anyone.
    const uint64_t begun = resumes || gate_.bound() != 0 || first_open_.empty()
                               ? 0
                               : *std::max_element(first_open_.begin(), first_open_.end());
    step = gate_.Join(worker, next_step, begun);
    if (const auto session = sessions_.find(worker); session != sessions_.end()) {
      // A copy of what it has pushed before may still be on its way.
      if (std::exchange(session->second.parked, false)) session->second.first_step = step;
    }
    closed_to_ = kLookAtAll;
    released = GateMoved();
  }
  AnswerReleased(std::move(released));
  return step;
}

bool ParamServer::active(WorkerId worker) const {
  MutexLock lock(&mu_);
  return gate_.active(worker);
}

void ParamServer::Park(WorkerId worker) {
  Operations released;
  Operations parked;
  {
    MutexLock lock(&mu_);
    const auto session = sessions_.find(worker);
    // A push that has begun counts as a whole.
    if (gate_.bound() != 0 || session == sessions_.end() || !session->second.delivered.empty()) return;
    session->second.parked = true;
    parked = ForgetContributions(worker);
    gate_.Leave(worker);
    closed_to_ = kLookAtAll;
    released = GateMoved();
  }
  AnswerDropped(std::move(parked));
  AnswerReleased(std::move(released));
}

void ParamServer::Deactivate(WorkerId worker) {
  Operations released;
  {
    MutexLock lock(&mu_);
    gate_.Leave(worker);
    closed_to_ = kLookAtAll;
    released = GateMoved();
  }
  AnswerReleased(std::move(released));
}

}  // namespace recon
