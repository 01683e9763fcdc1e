#include "server/cluster/state_parts.h"

#include <utility>

namespace recon {

void StateParts::Await(WorkerId worker, uint64_t upload, Staged staged) {
  {
    MutexLock lock(&mu_);
    upload_ = upload;
    staged_ = std::move(staged);
  }
  ServerCommand command;
  command.mutable_await_state()->set_worker(worker.value());
  command.mutable_await_state()->set_upload(upload);
  links_->Broadcast(command);
}

void StateParts::Commit(uint64_t upload) {
  ServerCommand command;
  command.set_commit_state(upload);
  links_->Broadcast(command);
}

void StateParts::Restore(uint64_t generation, uint64_t upload) {
  ServerCommand command;
  command.mutable_restore_state()->set_generation(generation);
  command.mutable_restore_state()->set_upload(upload);
  links_->Broadcast(command);
}

void StateParts::Note(uint32_t place, const StateStaged& staged) {
  Staged call;
  {
    MutexLock lock(&mu_);
    if (staged.upload() == upload_) call = staged_;
  }
  if (call) call(place, staged.step());
}

}  // namespace recon
