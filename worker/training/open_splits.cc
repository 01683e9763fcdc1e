#include "worker/training/open_splits.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/limits.h"

namespace recon {

void OpenSplit::BeginPush() {
  ++pushes_open_;
  pushed_ = true;
}

void OpenSplit::EndPush(bool applied) {
  if (!applied) dropped_ = true;  // Before it counts as ended: who sees it finished sees this, too.
  const int before = pushes_open_.fetch_sub(1);
  RECON_CHECK_GT(before, 0, "a push of a split ends twice");
}

void OpenSplit::Close() {
  RECON_CHECK(!closed_, "a split is closed twice");
  closed_ = true;
}

OpenSplitPtr OpenSplits::Open(const Session::HeldLeasePtr& lease, uint32_t number) {
  splits_.push_back(std::make_shared<OpenSplit>(lease, number));
  return splits_.back();
}

bool OpenSplits::full() const { return splits_.size() >= limits::kOpenSplitsMax; }

OpenSplitPtr OpenSplits::TakeFinished() {
  if (!any_finished()) return nullptr;
  OpenSplitPtr first = std::move(splits_.front());
  splits_.pop_front();
  return first;
}

void OpenSplits::DropAll() {
  for (const OpenSplitPtr& split : splits_) split->Drop();
}

}  // namespace recon
