// Of ParamServer: how it goes on by other rules while its workers train.

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "server/data_plane/param_operation.h"
#include "server/data_plane/param_server.h"

namespace recon {
namespace {

// Nothing that is under way waits for workers: lanes and disk have done it sooner.
constexpr absl::Duration kQuietTimeout = absl::Seconds(5);

}  // namespace

uint64_t ParamServer::FirstStepNobodyHasBegun() const {
  uint64_t first = gate_.frontier();
  for (const uint64_t open : first_open_) first = std::max(first, open);
  for (const auto& [worker, session] : sessions_) {
    first = std::max(first, gate_.next_step(worker));
    if (!session.delivered.empty()) first = std::max(first, session.delivered.rbegin()->first + 1);
  }
  return first;
}

absl::Status ParamServer::SwitchRules(const ApplyRules& rules, uint64_t first_step) {
  // State that means something else is none; what keeps none can always be had.
  const StateOwner owner = StateOf(rules);
  if (owner.planes() > 0 && (owner.kind != state().kind || owner.outer != state().outer)) {
    return absl::FailedPreconditionError(
        absl::StrCat(StateName(owner), " on the server needs state of its own, and this job keeps ",
                     state_planes() == 0 ? "none" : absl::StrCat("that of ", StateName(state()))));
  }
  if (options_.servers > 1) {
    return absl::FailedPreconditionError("the policy of a job with several servers cannot be changed live");
  }
  if (const std::shared_ptr<const ParamLayout> laid_out = layout()) {
    uint64_t pages = 0;
    for (const uint32_t i : owned_) pages += laid_out->shards()[i].pages();
    RECON_RETURN_IF_ERROR(CheckMemory(pages, rules, laid_out->model().name()));
    try {
      // That many are to be free: what is kept now is not counted, and goes.
      if (rules.correction.versions > 0) ReservePages(pages * rules.correction.versions);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat("no memory for the ", rules.correction.versions,
                                                       " versions that --staleness-correction keeps"));
    }
  }
  const absl::Status changing = absl::UnavailableError("the policy is being changed; ask again");
  Operations waiting;
  {
    MutexLock lock(&mu_);
    RECON_RETURN_IF_ERROR(log_status_);
    changing_rules_ = true;
    waiting = TakeWaiting([](const Operation&) { return true; });
  }
  for (const OperationPtr& op : waiting) Finish(op, changing);
  absl::Status status;
  if (!WaitUntilIdle(kQuietTimeout))
    status = absl::UnavailableError("pushes under way do not come to an end");
  // Closings, too, and cuts; behind it nothing has been appended.
  if (status.ok() && log_ != nullptr) status = log_->BeginSegment(rules);
  MutexLock lock(&mu_);
  changing_rules_ = false;
  RECON_RETURN_IF_ERROR(status);
  live_rules_.push_back(rules);
  rules_ = &live_rules_.back();
  cluster_epoch_ = rules.cluster_epoch;
  const uint64_t frontier = std::max(first_step, FirstStepNobodyHasBegun());
  gate_ = StalenessGate(rules.bound, frontier);
  closed_to_ = kLookAtAll;
  contributed_.clear();
  touched_.clear();
  awaiting_closing_.clear();
  open_steps_.clear();
  for (auto& [worker, session] : sessions_) session.delivered.clear();
  if (layout_ == nullptr) return absl::OkStatus();
  SetShardRules(*layout_, rules_);
  // Steps before are closed without any more contributions, in the log, too: after a restart they are not
  // begun again.
  if (frontier > 0) {
    StepClosing closing;
    closing.step = frontier - 1;
    closing.shards = owned_;
    Close(std::move(closing));
  }
  return absl::OkStatus();
}

ApplyRules ParamServer::rules() const {
  MutexLock lock(&mu_);
  return *rules_;
}

absl::Status ParamServer::ChangeRules(const ApplyRules& rules, uint64_t first_step) {
  RECON_RETURN_IF_ERROR(SwitchRules(rules, first_step));
  if (log_ == nullptr) return absl::OkStatus();
  // Steps must not begin again.
  absl::Status written;
  Notification done;
  log_->Barrier([&](const absl::Status& status) {
    written = status;
    done.Notify();
  });
  done.WaitForNotification();
  return written.ok() ? written : LogFailed(written);
}

}  // namespace recon
