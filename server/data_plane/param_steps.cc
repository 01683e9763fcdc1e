// Of ParamServer: whose pushes it takes, when synchronous steps are closed, and what the job's other servers
// have to do with both. (What counts, StepBook knows.)

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/clock.h"
#include "server/data_plane/param_server.h"

namespace recon {

Operations ParamServer::BookMoved() {
  for (StepClosing& closing : book_.TakeClosings()) Close(std::move(closing));
  replies_.ForgetBefore(book_.gate().frontier());
  WatchQuorum();
  TellFrontier();
  return TakeReleased();
}

void ParamServer::Close(StepClosing closing) {
  replies_.NoteClosing(closing);
  ByteChain record = log_.on() ? ByteChain::FromString(EncodeClosing(closing)) : ByteChain();
  InOrder(
      LogRecordKind::kClosing, std::move(record),
      [this, closing = std::move(closing)] {
        mu_.AssertHeld();
        DeliverClosing(closing);
      },
      [this](const absl::Status& failed) { GiveUpWaiting(failed); });
}

void ParamServer::DeliverClosing(const StepClosing& closing) {
  push_sequence_ = ++sequence_;
  closed_.NoteInLog(closing.step, book_.gate().frontier());
  TellClosing(closing);
  shards_.Close(closing);
}

void ParamServer::TellClosing(const StepClosing& closing) {
  if (options_.followers == nullptr) return;
  std::map<uint32_t, StepClosing> by_server;
  for (const uint32_t shard : closing.shards) {
    const uint32_t server = shards_.map().server_of(shard);
    if (server != options_.server) by_server[server].shards.push_back(shard);
  }
  for (auto& [server, theirs] : by_server) {
    theirs.step = closing.step;
    theirs.contributors = closing.contributors;
    options_.followers->OnClosing(server, theirs);
  }
}

void ParamServer::TellFrontier() {
  if (options_.followers == nullptr) return;
  const StalenessGate& gate = book_.gate();
  if (gate.bound() == StalenessGate::kUnlimited) return;
  const std::pair<uint64_t, bool> frontier = {gate.frontier(), gate.any_active()};
  if (frontier == told_frontier_) return;
  told_frontier_ = frontier;
  if (!log_.on() || !gate.synchronous()) {
    return options_.followers->OnFrontier(frontier.first, frontier.second);
  }
  // Behind the closings that moved it.
  log_.get()->Barrier([this, frontier](const absl::Status& written) {
    if (!written.ok()) return;
    MutexLock lock(&mu_);
    options_.followers->OnFrontier(frontier.first, frontier.second);
  });
}

template <typename Change>
void ParamServer::MoveBook(Change change) {
  Operations released;
  {
    MutexLock lock(&mu_);
    change();
    released = BookMoved();
  }
  AnswerReleased(std::move(released));
}

void ParamServer::SetQuorum(uint32_t workers, std::optional<absl::Duration> grace) {
  MutexLock lock(&mu_);
  book_.SetQuorum(StepQuorum(workers, grace));
  if (workers > 0 && head() && grace_alarm_ == nullptr) {
    grace_alarm_ = std::make_unique<Alarm>([this] { CloseWithoutLate(); });
  }
}

absl::Time ParamServer::WatchQuorum() {
  if (grace_alarm_ == nullptr) return absl::InfiniteFuture();
  const absl::Time at = book_.WatchQuorum(Now());
  grace_alarm_->Set(at);
  return at;
}

void ParamServer::CloseWithoutLate() {
  Operations released;
  Operations dropped;
  {
    MutexLock lock(&mu_);
    if (draining_ || changing_rules_ || WatchQuorum() > Now()) return;
    for (const WorkerId worker : book_.ParkLate()) {
      for (OperationPtr& op : replies_.TakeOf(worker)) dropped.push_back(std::move(op));
    }
    released = BookMoved();
  }
  AnswerDropped(dropped);
  AnswerReleased(std::move(released));
}

void ParamServer::Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) {
  MoveBook([&] {
    mu_.AssertHeld();
    WorkerTally& admitted = workers_[worker];
    memory_.Admit(worker, /*anew=*/admitted.incarnation != incarnation);
    admitted.incarnation = incarnation;
    book_.Admit(worker, incarnation, next_step);
    start_.NoteWorker(SinceBegan());
  });
}

void ParamServer::NoteReady() {
  MutexLock lock(&mu_);
  start_.NoteReady(SinceBegan());
}

void ParamServer::Expel(WorkerId worker) {
  Operations released;
  Operations expelled;
  {
    MutexLock lock(&mu_);
    // Its replies go before the steps that waited for it close: its splits are done again by others.
    expelled = replies_.TakeOf(worker);
    book_.Expel(worker);
    memory_.Expel(worker);
    workers_.erase(worker);
    released = BookMoved();
  }
  FinishAll(expelled, absl::FailedPreconditionError("the worker was evicted"));
  AnswerReleased(std::move(released));
}

uint64_t ParamServer::Activate(WorkerId worker, uint64_t next_step, bool resumes) {
  uint64_t step = 0;
  MoveBook([&] {
    mu_.AssertHeld();
    step = book_.Activate(worker, next_step, resumes);
  });
  return step;
}

void ParamServer::Deactivate(WorkerId worker) {
  MoveBook([&] {
    mu_.AssertHeld();
    book_.Deactivate(worker);
  });
}

bool ParamServer::active(WorkerId worker) const {
  MutexLock lock(&mu_);
  return book_.gate().active(worker);
}

bool ParamServer::awaited(WorkerId worker) const {
  MutexLock lock(&mu_);
  const StalenessGate& gate = book_.gate();
  return gate.active(worker) && gate.next_step(worker) <= gate.frontier();
}

void ParamServer::Park(WorkerId worker) {
  Operations released;
  Operations parked;
  {
    MutexLock lock(&mu_);
    if (!book_.Park(worker)) return;
    parked = replies_.Take([&](const Operation& op) {
      mu_.AssertHeld();
      return op.worker == worker && !book_.Takes(worker, op.frame.header.step);
    });
    released = BookMoved();
  }
  AnswerDropped(parked);
  AnswerReleased(std::move(released));
}

void ParamServer::NoteAcknowledged(WorkerId worker, uint64_t next_step) {
  MoveBook([&] {
    mu_.AssertHeld();
    book_.NoteAcknowledged(worker, next_step);
  });
}

bool ParamServer::Knows(Incarnation process) const {
  MutexLock lock(&mu_);
  const auto is_of = [process](const auto& worker) { return worker.second.incarnation == process; };
  if (std::any_of(workers_.begin(), workers_.end(), is_of)) return true;
  return std::any_of(recovered_.begin(), recovered_.end(),
                     [process](const auto& worker) { return worker.second == process; });
}

uint64_t ParamServer::PushesOf(WorkerId worker) const {
  MutexLock lock(&mu_);
  const auto found = workers_.find(worker);
  return found == workers_.end() ? 0 : found->second.pushes;
}

void ParamServer::SetClusterEpoch(uint64_t epoch) {
  Operations waiting;
  {
    MutexLock lock(&mu_);
    cluster_epoch_ = epoch;
    // What they wait for may have been said to a server that has gone.
    waiting = replies_.TakeAll();
  }
  FinishAll(waiting, absl::UnavailableError("a new cluster epoch has begun; ask again"));
}

void ParamServer::SkipTo(uint64_t frontier) {
  MoveBook([&] {
    mu_.AssertHeld();
    book_.SkipTo(frontier);
  });
}

void ParamServer::NoteDelivered(WorkerId worker, Incarnation incarnation, uint64_t step,
                                const std::vector<uint32_t>& shards, uint32_t push_parts) {
  Operations released;
  {
    MutexLock lock(&mu_);
    const uint32_t model = shards_.map().size();
    if (!book_.MayReport(worker, incarnation, step)) return;
    if (std::any_of(shards.begin(), shards.end(), [model](uint32_t shard) { return shard >= model; })) return;
    if (push_parts == 0 || push_parts > model) return;
    if (book_.NoteParts(worker, incarnation, step, shards, push_parts, push_parts)) {
      ++pushes_;
      ++workers_[worker].pushes;
    }
    released = BookMoved();
  }
  AnswerReleased(std::move(released));
}

void ParamServer::ForgetDeliveriesTo(uint32_t server) {
  MutexLock lock(&mu_);
  book_.ForgetPartsOf(shards_.map().of(server));
}

void ParamServer::FollowClosing(const StepClosing& closing) {
  Operations released;
  Operations dropped;
  {
    MutexLock lock(&mu_);
    StepClosing here{closing.step, {}, closing.contributors};
    for (const uint32_t shard : closing.shards) {
      if (shard < shards_.map().size() && shards_.map().has(shard)) here.shards.push_back(shard);
    }
    StepClosing ours = closed_.NoteNew(here);
    if (ours.shards.empty()) return;
    Close(std::move(ours));
    released = TakeReleased();
    dropped = replies_.TakeDropped();
  }
  AnswerDropped(dropped);
  AnswerReleased(std::move(released));
}

void ParamServer::FollowFrontier(uint64_t frontier, bool anyone_active) {
  Operations released;
  Operations dropped;
  {
    MutexLock lock(&mu_);
    book_.Follow(frontier, anyone_active);
    // What was counted went out with its closings.
    if (book_.gate().synchronous()) {
      dropped = replies_.Take([frontier](const Operation& op) { return op.frame.header.step < frontier; });
      replies_.ForgetBefore(frontier);
    }
    released = TakeReleased();
  }
  AnswerDropped(dropped);
  AnswerReleased(std::move(released));
}

}  // namespace recon
