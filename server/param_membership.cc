// Of ParamServer: which workers it takes pushes from, and whom the steps wait for.

#include <utility>
#include <vector>

#include "server/param_operation.h"
#include "server/param_server.h"

namespace recon {

void ParamServer::Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) {
  std::vector<OperationPtr> released;
  {
    MutexLock lock(&mu_);
    Session& session = sessions_[worker];
    if (session.incarnation != incarnation) session.delivered.clear();
    session.incarnation = incarnation;
    gate_.Know(worker, next_step);
    CloseSteps();
    released = TakeReleased();
  }
  AnswerReleased(std::move(released));
}

void ParamServer::Expel(WorkerId worker) {
  std::vector<OperationPtr> released;
  std::vector<OperationPtr> expelled;
  {
    MutexLock lock(&mu_);
    // Before the steps that waited for it close: its splits are done again by others.
    for (auto& [step, contributors] : complete_) {
      const auto first = contributors.lower_bound({worker, Incarnation(0)});
      const auto last = contributors.upper_bound({worker, Incarnation(UINT64_MAX)});
      contributors.erase(first, last);
    }
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      if (it->second->worker != worker) {
        ++it;
        continue;
      }
      gate_.Cancel(it->first);
      expelled.push_back(std::move(it->second));
      it = waiting_.erase(it);
    }
    gate_.Forget(worker);
    sessions_.erase(worker);
    CloseSteps();
    released = TakeReleased();
  }
  for (const OperationPtr& op : expelled) Finish(op, absl::FailedPreconditionError("the worker was evicted"));
  AnswerReleased(std::move(released));
}

void ParamServer::NoteAcknowledged(WorkerId worker, uint64_t next_step) {
  std::vector<OperationPtr> released;
  {
    MutexLock lock(&mu_);
    gate_.Raise(worker, next_step);
    CloseSteps();
    released = TakeReleased();
  }
  AnswerReleased(std::move(released));
}

uint64_t ParamServer::Activate(WorkerId worker, uint64_t next_step) {
  uint64_t step;
  std::vector<OperationPtr> released;
  {
    MutexLock lock(&mu_);
    step = gate_.Join(worker, next_step);
    CloseSteps();
    released = TakeReleased();
  }
  AnswerReleased(std::move(released));
  return step;
}

void ParamServer::Deactivate(WorkerId worker) {
  std::vector<OperationPtr> released;
  {
    MutexLock lock(&mu_);
    gate_.Leave(worker);
    CloseSteps();
    released = TakeReleased();
  }
  AnswerReleased(std::move(released));
}

}  // namespace recon
