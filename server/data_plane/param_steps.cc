// Of ParamServer: when replies to pushes may go out. Whose pushes count in a synchronous step, its closing
// (one server decides: the head), and what the job's other servers have to do with it.

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/cpu_usage.h"
#include "common/base/limits.h"
#include "common/codec/frame_about.h"
#include "common/trace/span_names.h"
#include "server/data_plane/param_operation.h"
#include "server/data_plane/param_server.h"

namespace recon {
namespace {

// Times that the grace of a worker that is late doubles.
constexpr int kLongerMax = 16;

}  // namespace

bool ParamServer::Closed(uint64_t step, uint32_t shard) const {
  return step < first_open_[shard] || step < gate_.frontier();
}

absl::Status ParamServer::CheckCounts(const Operation& op) const {
  const uint64_t step = op.frame.header.step;
  if (gate_.bound() != 0) {
    if (std::count(op.outcomes.begin(), op.outcomes.end(), Shard::Outcome::kLate) == 0)
      return absl::OkStatus();
    return absl::AbortedError(
        absl::StrCat("step ", step, " is so far behind the worker's others that nobody knows of it"));
  }
  const bool parked = sessions_.at(op.worker).parked;
  bool pending = false;
  for (size_t i = 0; i < op.frame.parts.size(); ++i) {
    const Shard::Outcome outcome = op.outcomes[i];
    const bool closed = Closed(step, op.frame.parts[i].shard);
    const bool open = !closed && (outcome == Shard::Outcome::kTaken || outcome == Shard::Outcome::kPending);
    if (parked && open) return NotInStep(step);
    if (outcome == Shard::Outcome::kLate || (closed && outcome == Shard::Outcome::kTaken)) {
      return absl::AbortedError(
          absl::StrCat("step ", step, " was closed without this push; the next is ",
                       std::max(gate_.frontier(), first_open_[op.frame.parts[i].shard])));
    }
    if (!closed || outcome != Shard::Outcome::kPending) continue;
    if (step >= first_open_[op.frame.parts[i].shard]) {
      return absl::AbortedError(absl::StrCat("step ", step, " was given up without this push"));
    }
    pending = true;
  }
  if (!pending) return absl::OkStatus();
  // The step was closing meanwhile: by the next try the ledger knows whether the push counted.
  return absl::UnavailableError("the step is being closed; ask again");
}

void ParamServer::RecordDelivery(const OperationPtr& op) {
  const FrameHeader& header = op->frame.header;
  Session& session = sessions_[op->worker];
  const size_t duplicates = op->frame.parts.size() - op->parts_taken;
  duplicates_ += duplicates;
  RecordDuplicates(duplicates);
  PooledVector<uint32_t> shards;
  shards.reserve(op->frame.parts.size());
  for (const PartHeader& part : op->frame.parts) shards.push_back(part.shard);
  const bool bounded = gate_.bound() != StalenessGate::kUnlimited;
  if (!head() && bounded) {
    options_.report_delivery(op->worker, op->incarnation, header.step, shards, header.push_parts);
  }
  const size_t here = header.server_parts != 0 ? header.server_parts : owned_.size();
  const size_t expected = head() && bounded ? header.push_parts : here;
  if (!NoteShards(&session, op->worker, header.step, shards, expected) || op->parts_taken == 0) return;
  ++pushes_;
  ++session.pushes;
  RecordPush();
  if (!op->staleness_known) return;
  ++session.staleness_pushes;
  session.staleness_sum += static_cast<double>(op->staleness_max);
  session.staleness_max = std::max<uint64_t>(session.staleness_max, op->staleness_max);
  const auto bound = std::lower_bound(kStalenessBounds.begin(), kStalenessBounds.end(),
                                      static_cast<double>(op->staleness_max));
  ++session.staleness_counts[static_cast<size_t>(bound - kStalenessBounds.begin())];
  RecordStaleness(op->staleness_max);
}

bool ParamServer::NoteBegun(const Operation& op) {
  const uint64_t step = op.frame.header.step;
  const auto session = sessions_.find(op.worker);
  // Expelled or started anew meanwhile.
  if (session == sessions_.end() || session->second.incarnation != op.incarnation) return false;
  session->second.next_begun = std::max(session->second.next_begun, step + 1);
  return std::all_of(sessions_.begin(), sessions_.end(), [step](const auto& other) {
    return other.second.parked || other.second.next_begun > step;
  });
}

bool ParamServer::NoteShards(Session* session, WorkerId worker, uint64_t step,
                             absl::Span<const uint32_t> shards, size_t expected) {
  if (head() && gate_.bound() == 0) {
    for (const uint32_t shard : shards) {
      if (!Closed(step, shard)) contributed_[step][shard].insert({worker, session->incarnation});
    }
    std::vector<uint32_t>& touched = touched_[step];
    touched.insert(touched.end(), shards.begin(), shards.end());
  }
  if (head() && step < gate_.next_step(worker)) return false;  // Was complete before.
  // Of pushes that were given up.
  session->delivered.erase(session->delivered.begin(),
                           session->delivered.lower_bound(step - std::min(step, limits::kStepsAheadMax)));
  Delivery& delivered = session->delivered[step];
  delivered.shards.reserve(expected);
  delivered.shards.insert(shards.begin(), shards.end());
  delivered.expected = expected;
  if (delivered.shards.size() < expected) return false;
  session->delivered.erase(step);
  if (!head()) return true;
  gate_.Advance(worker, step);
  session->next_pushed = std::max(session->next_pushed, step + 1);
  session->late_in_a_row = 0;
  const auto open = contributed_.find(step);
  if (gate_.bound() == 0 && expected < shards_.size() && open != contributed_.end()) {
    // The shards that it does not push wait for it no longer.
    for (const auto& [shard, contributors] : open->second) touched_[step].push_back(shard);
  }
  return true;
}

bool ParamServer::MustWait(const OperationPtr& op) const {
  const uint64_t step = op->frame.header.step;
  if (gate_.bound() != 0) return !gate_.Open(step);
  return std::any_of(op->frame.parts.begin(), op->frame.parts.end(),
                     [&](const PartHeader& part)
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !Closed(step, part.shard); });
}

void ParamServer::Wait(const OperationPtr& op) {
  const uint64_t step = op->frame.header.step;
  op->ticket = next_ticket_++;
  op->waiting_since = Now();
  waiting_[op->ticket] = op;
  // The gate releases no reply of a synchronous job: closings do.
  const absl::Duration patience = op->rules->local ? limits::kRoundReplyWaitMax : limits::kReplyWaitMax;
  gate_.Wait(op->ticket, gate_.bound() == 0 ? UINT64_MAX : step, op->arrived + patience);
  if (gate_.bound() != 0) return;
  op->closings_left = 0;
  for (const PartHeader& part : op->frame.parts) {
    if (Closed(step, part.shard)) continue;
    awaiting_closing_[{step, part.shard}].push_back(op);
    ++op->closings_left;
  }
}

ParamServer::Operations ParamServer::TakeWaiting(const std::function<bool(const Operation&)>& wanted) {
  Operations taken;
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (!wanted(*it->second)) {
      ++it;
      continue;
    }
    gate_.Cancel(it->first);
    taken.push_back(std::move(it->second));
    it = waiting_.erase(it);
  }
  return taken;
}

ParamServer::Operations ParamServer::GateMoved() {
  CloseWhatIsComplete();
  WatchQuorum();
  TellFrontier();
  return TakeReleased();
}

void ParamServer::SetQuorum(uint32_t workers, std::optional<absl::Duration> grace) {
  MutexLock lock(&mu_);
  quorum_ = StepQuorum(workers, grace);
  if (workers > 0 && grace_alarm_ == nullptr) {
    grace_alarm_ = std::make_unique<Alarm>([this] { CloseWithoutLate(); });
  }
}

absl::Time ParamServer::WatchQuorum() {
  if (!quorum_.on() || gate_.bound() != 0 || grace_alarm_ == nullptr) return absl::InfiniteFuture();
  const uint64_t step = gate_.frontier();
  size_t pushed = 0;
  for (const auto& [worker, session] : sessions_) {
    if (session.next_pushed > step && gate_.active(worker)) ++pushed;
  }
  const std::vector<WorkerId> awaited = gate_.Awaited(step);
  absl::Time at = quorum_.Note(step, pushed, awaited.size(), Now());
  // Who was late already and sends is waited for longer each time: on a slow link it would never be in time.
  absl::Duration longer;
  for (const WorkerId worker : awaited) {
    const auto session = sessions_.find(worker);
    if (session == sessions_.end() || session->second.delivered.count(step) == 0) continue;
    const int times = std::min(session->second.late_in_a_row, kLongerMax);
    longer = std::max(longer, quorum_.grace() * ((1 << times) - 1));
  }
  at += std::min(longer, limits::kReplyWaitMax);
  grace_alarm_->Set(at);
  return at;
}

void ParamServer::CloseWithoutLate() {
  Operations released;
  Operations dropped;
  {
    MutexLock lock(&mu_);
    if (draining_ || changing_rules_ || WatchQuorum() > Now()) return;
    for (const WorkerId worker : gate_.Awaited(gate_.frontier())) {
      // All of its push or nothing counts: what is left of it comes again, in another step.
      for (OperationPtr& op : ForgetContributions(worker)) dropped.push_back(std::move(op));
      Session& session = sessions_[worker];
      session.parked = true;
      session.delivered.clear();
      ++session.late_steps;
      ++session.late_in_a_row;
      gate_.Leave(worker);
    }
    closed_to_ = kLookAtAll;
    released = GateMoved();
  }
  AnswerDropped(std::move(dropped));
  AnswerReleased(std::move(released));
}

ParamServer::Operations ParamServer::ForgetContributions(WorkerId worker) {
  for (auto& [step, shards] : contributed_) {
    for (auto& [shard, contributors] : shards) {
      const auto first = contributors.lower_bound({worker, Incarnation(0)});
      const auto last = contributors.upper_bound({worker, Incarnation(UINT64_MAX)});
      contributors.erase(first, last);
    }
  }
  return TakeWaiting([worker](const Operation& op) { return op.worker == worker; });
}

void ParamServer::CloseWhatIsComplete() {
  if (!head() || gate_.bound() != 0) return;
  if (closed_to_ != gate_.frontier()) {
    closed_to_ = gate_.frontier();
    touched_.clear();
    for (const auto& [step, shards] : contributed_) {
      for (const auto& [shard, contributors] : shards) touched_[step].push_back(shard);
    }
  }
  for (auto& [step, shards] : std::exchange(touched_, {})) {
    std::sort(shards.begin(), shards.end());
    CloseShards(step, shards);
  }
  ForgetAwaiting(gate_.frontier());
}

// Nobody waits for these any more: those who did were answered for other reasons.
void ParamServer::ForgetAwaiting(uint64_t frontier) {
  awaiting_closing_.erase(awaiting_closing_.begin(), awaiting_closing_.lower_bound({frontier, 0}));
}

void ParamServer::CloseShards(uint64_t step, const std::vector<uint32_t>& shards) {
  const auto open = contributed_.find(step);
  if (open == contributed_.end()) return;
  std::vector<const Delivery::Shards*> awaited;
  for (const WorkerId worker : gate_.Awaited(step)) {
    const auto session = sessions_.find(worker);
    if (session == sessions_.end()) continue;
    if (gate_.next_step(worker) < step)
      return;  // Steps close in their order: it may push this shard in both.
    const auto delivered = session->second.delivered.find(step);
    if (delivered == session->second.delivered.end()) return;  // Nothing yet.
    awaited.push_back(&delivered->second.shards);
  }
  // A push counts as a whole, or not at all: whose is not here may be left out.
  if (quorum_.on() && !awaited.empty()) return;
  // Those with the same contributors together: one record.
  std::map<std::set<Shard::Contributor>, std::vector<uint32_t>> closed;
  for (const uint32_t shard : shards) {
    const auto contributors = open->second.find(shard);
    if (contributors == open->second.end()) continue;
    const auto has = [shard](const auto* delivered) { return delivered->contains(shard); };
    if (!std::all_of(awaited.begin(), awaited.end(), has)) continue;
    if (!contributors->second.empty()) closed[std::move(contributors->second)].push_back(shard);
    open->second.erase(contributors);
  }
  if (open->second.empty()) contributed_.erase(open);
  for (auto& [contributors, of] : closed) {
    StepClosing closing;
    closing.step = step;
    closing.shards = std::move(of);
    closing.contributors.assign(contributors.begin(), contributors.end());
    Close(std::move(closing));
  }
}

void ParamServer::Close(StepClosing closing) {
  const std::set<Shard::Contributor> counted(closing.contributors.begin(), closing.contributors.end());
  for (const uint32_t shard : closing.shards) {
    first_open_[shard] = std::max(first_open_[shard], closing.step + 1);
    const auto awaiting = awaiting_closing_.find({closing.step, shard});
    if (awaiting == awaiting_closing_.end()) continue;
    for (OperationPtr& op : awaiting->second) {
      if (waiting_.count(op->ticket) == 0) continue;  // It was answered for another reason.
      const bool counts = counted.count({op->worker, op->incarnation}) > 0;
      if (counts && --op->closings_left > 0) continue;
      gate_.Cancel(op->ticket);
      waiting_.erase(op->ticket);
      (counts ? released_ : dropped_).push_back(std::move(op));
    }
    awaiting_closing_.erase(awaiting);
  }
  closings_in_log_.insert(closing.step);
  if (log_ == nullptr) return DeliverClosing(closing);
  ByteChain record = ByteChain::FromString(EncodeClosing(closing));
  log_->Append(LogRecordKind::kClosing, std::move(record),
               [this, closing = std::move(closing)](const absl::Status& written) {
                 if (!written.ok()) return GiveUpWaiting(written);
                 MutexLock lock(&mu_);
                 DeliverClosing(closing);
               });
}

void ParamServer::DeliverClosing(const StepClosing& closing) {
  push_sequence_ = ++sequence_;
  closings_in_log_.erase(closings_in_log_.find(closing.step));
  open_steps_.erase(open_steps_.begin(), open_steps_.lower_bound(FrontierInLog()));
  TellClosing(closing);
  PostClosing(closing);
}

void ParamServer::TellClosing(const StepClosing& closing) {
  if (options_.followers == nullptr) return;
  std::map<uint32_t, StepClosing> by_server;
  for (const uint32_t shard : closing.shards) {
    const uint32_t server = server_of_shard_[shard];
    if (server != options_.server) by_server[server].shards.push_back(shard);
  }
  for (auto& [server, theirs] : by_server) {
    theirs.step = closing.step;
    theirs.contributors = closing.contributors;
    options_.followers->OnClosing(server, theirs);
  }
}

void ParamServer::PostClosing(const StepClosing& closing) {
  const auto contributors = std::make_shared<const std::set<Shard::Contributor>>(closing.contributors.begin(),
                                                                                 closing.contributors.end());
  for (const uint32_t i : closing.shards) {
    if (shards_[i] == nullptr) continue;  // Another server's.
    lanes_.Post(LaneKey(i), [this, i, step = closing.step, contributors] {
      const ThreadCpuTimer timer(&apply_nanos_);
      const trace::Span span(trace::kClosing, {0, step, i + 1});
      shards_[i]->CloseStep(step, *contributors);
      RaiseTo(shards_[i]->version(), &updates_);
    });
  }
}

void ParamServer::TellFrontier() {
  if (options_.followers == nullptr || gate_.bound() == StalenessGate::kUnlimited) return;
  const std::pair<uint64_t, bool> frontier = {gate_.frontier(), gate_.any_active()};
  if (frontier == told_frontier_) return;
  told_frontier_ = frontier;
  if (log_ == nullptr || gate_.bound() != 0) {
    return options_.followers->OnFrontier(frontier.first, frontier.second);
  }
  // Behind the closings that moved it.
  log_->Barrier([this, frontier](const absl::Status& written) {
    if (!written.ok()) return;
    MutexLock lock(&mu_);
    options_.followers->OnFrontier(frontier.first, frontier.second);
  });
}

ParamServer::Operations ParamServer::TakeReleased() {
  Operations released = std::exchange(released_, {});
  for (const StalenessGate::Ticket ticket : gate_.TakeReleased()) {
    released.push_back(std::move(waiting_[ticket]));
    waiting_.erase(ticket);
  }
  const absl::Time now = Now();
  for (const OperationPtr& op : released) {
    if (trace::On()) {
      trace::RecordPassive(trace::kWaitingForOthers, trace::NanosAt(op->waiting_since),
                           AboutFrame(op->frame));
    }
    const auto session = sessions_.find(op->worker);
    if (session == sessions_.end()) continue;
    session->second.waiting_seconds += absl::ToDoubleSeconds(now - op->waiting_since);
  }
  return released;
}

void ParamServer::GiveUpWaiting(const absl::Status& log_status) {
  std::map<StalenessGate::Ticket, OperationPtr> waiting;
  {
    MutexLock lock(&mu_);
    log_status_ = log_status;
    waiting.swap(waiting_);
    gate_.TakeExpired(absl::InfiniteFuture());
  }
  for (const auto& [ticket, op] : waiting) Finish(op, LogFailed(log_status));
}

void ParamServer::NoteDelivered(WorkerId worker, Incarnation incarnation, uint64_t step,
                                const std::vector<uint32_t>& shards, uint32_t push_parts) {
  Operations released;
  {
    MutexLock lock(&mu_);
    const auto session = sessions_.find(worker);
    if (session == sessions_.end() || session->second.incarnation != incarnation) return;
    if (session->second.parked) return;
    const uint64_t ahead = limits::kStepsAheadMax + static_cast<uint64_t>(std::max(0, gate_.bound()));
    if (step >= std::max(gate_.next_step(worker), gate_.frontier()) + ahead) return;
    for (const uint32_t shard : shards) {
      if (shard >= shards_.size()) return;
    }
    if (push_parts == 0 || push_parts > shards_.size()) return;
    if (NoteShards(&session->second, worker, step, shards, push_parts)) {
      ++pushes_;
      ++session->second.pushes;
    }
    released = GateMoved();
  }
  AnswerReleased(std::move(released));
}

void ParamServer::ForgetDeliveriesTo(uint32_t server) {
  MutexLock lock(&mu_);
  for (uint32_t shard = 0; shard < server_of_shard_.size(); ++shard) {
    if (server_of_shard_[shard] != server) continue;
    for (auto& [step, shards] : contributed_) shards.erase(shard);
    for (auto& [worker, session] : sessions_) {
      for (auto& [step, delivered] : session.delivered) delivered.shards.erase(shard);
    }
  }
}

void ParamServer::FollowClosing(const StepClosing& closing) {
  Operations released;
  Operations dropped;
  {
    MutexLock lock(&mu_);
    StepClosing ours = closing;
    // What it has in its log is said again after an interruption.
    const auto known = [&](uint32_t shard) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return shard >= shards_.size() || shards_[shard] == nullptr || closing.step < first_open_[shard];
    };
    ours.shards.erase(std::remove_if(ours.shards.begin(), ours.shards.end(), known), ours.shards.end());
    if (ours.shards.empty()) return;
    Close(std::move(ours));
    released = TakeReleased();
    dropped = std::exchange(dropped_, {});
  }
  AnswerDropped(std::move(dropped));
  AnswerReleased(std::move(released));
}

void ParamServer::FollowFrontier(uint64_t frontier, bool anyone_active) {
  Operations released;
  Operations dropped;
  {
    MutexLock lock(&mu_);
    gate_.Follow(frontier, anyone_active);
    // What was counted went out with its closings.
    if (gate_.bound() == 0) {
      dropped = TakeWaiting([frontier](const Operation& op) { return op.frame.header.step < frontier; });
      ForgetAwaiting(frontier);
    }
    released = TakeReleased();
  }
  AnswerDropped(std::move(dropped));
  AnswerReleased(std::move(released));
}

void ParamServer::AnswerDropped(Operations ops) {
  for (const OperationPtr& op : ops) {
    Finish(op,
           absl::AbortedError(absl::StrCat("step ", op->frame.header.step, " was closed without this push")));
  }
}

}  // namespace recon
