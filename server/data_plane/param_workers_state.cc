// This part of ParamServer keeps the state that workers upload, where they have the optimizer.

#include <utility>

#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "server/data_plane/param_server.h"

namespace recon {

void ParamServer::AwaitState(WorkerId worker, uint64_t upload, std::function<void(uint64_t step)> staged) {
  MutexLock lock(&mu_);
  state_upload_.AskOf(worker, upload);
  state_staged_ = std::move(staged);
}

void ParamServer::StateCame(const OperationPtr& op) {
  std::function<void(uint64_t step)> staged;
  {
    MutexLock lock(&mu_);
    if (state_upload_.Came(op->frame.header.order_key, op->shards)) {
      staged = std::exchange(state_staged_, nullptr);
    }
  }
  if (staged) staged(op->frame.header.step);
  Finish(op, absl::OkStatus());
}

absl::Status ParamServer::CommitState(uint64_t upload) {
  const auto commit = [this, upload] {
    mu_.AssertHeld();
    // In all lanes' queues at once: a cut has all of it or nothing.
    shards_.CommitStaged(state_upload_.shards(), upload);
    state_upload_.EndCommit();
    state_version_ = upload;
  };
  MutexLock lock(&mu_);
  RECON_RETURN_IF_ERROR(state_upload_.BeginCommit(upload));
  if (options_.followers != nullptr) options_.followers->OnStateCommitted(upload);
  if (head() || !log_.on()) {
    commit();
    return absl::OkStatus();
  }
  // Cuts that the head has asked for before wait for the log.
  log_.get()->Barrier([this, commit](const absl::Status& /*written*/) {
    MutexLock applied(&mu_);
    commit();
  });
  return absl::OkStatus();
}

absl::Status ParamServer::RestoreState(const SnapshotReader& reader, const Manifest& manifest,
                                       uint64_t upload) {
  if (!head() && log_.on()) {
    // What was to be committed before, is.
    Notification reached;
    log_.get()->Barrier([&reached](const absl::Status& /*written*/) { reached.Notify(); });
    reached.WaitForNotification();
  }
  RECON_ASSIGN_OR_RETURN(auto state, shards_.ReadState(reader, manifest));
  MutexLock lock(&mu_);
  state_upload_.Forget();
  shards_.ReplaceState(std::move(state), upload);
  state_version_ = upload;
  return absl::OkStatus();
}

uint64_t ParamServer::state_version() const {
  MutexLock lock(&mu_);
  return state_version_;
}

}  // namespace recon
