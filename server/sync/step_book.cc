#include "server/sync/step_book.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"

namespace recon {
namespace {

// Times that the grace of a worker that is late doubles.
constexpr int kLongerMax = 16;

// Workers ask where to go on.
absl::Status NotInStep(uint64_t step) {
  return absl::AbortedError(absl::StrCat("step ", step, " does not wait for this worker"));
}

}  // namespace

void StepBook::Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) {
  Worker& admitted = workers_[worker];
  // A process that registers again stays parked until it is activated.
  if (admitted.incarnation != incarnation) {
    admitted.delivered.clear();
    admitted.next_begun = 0;
    admitted.parked = false;
    admitted.first_step = 0;
    admitted.kept.clear();
  }
  admitted.incarnation = incarnation;
  gate_.Know(worker, next_step);
  LookAtAll();
}

void StepBook::Expel(WorkerId worker) {
  ForgetContributions(worker);
  gate_.Forget(worker);
  workers_.erase(worker);
  LookAtAll();
}

uint64_t StepBook::Activate(WorkerId worker, uint64_t next_step, bool resumes) {
  // Steps that are closed for some shards are not begun by anyone.
  const bool goes_on = resumes && Takes(worker, next_step);
  const uint64_t begun = goes_on || !gate_.synchronous() ? 0 : closed_.first_open_of_any();
  const uint64_t step = gate_.Join(worker, next_step, begun);
  // A copy of what it has pushed before it was parked may still be on its way.
  if (const auto found = workers_.find(worker);
      found != workers_.end() && std::exchange(found->second.parked, false)) {
    found->second.first_step = step;
  }
  LookAtAll();
  return step;
}

void StepBook::Deactivate(WorkerId worker) {
  gate_.Leave(worker);
  LookAtAll();
}

bool StepBook::Park(WorkerId worker) {
  const auto found = workers_.find(worker);
  // A push that has begun counts as a whole.
  if (!gate_.synchronous() || found == workers_.end() || !found->second.delivered.empty()) return false;
  Worker& parked = found->second;
  if (!parked.parked) {
    // What is complete stays: shards may be closed with it already.
    const auto over = [this](const auto& steps) { return steps.second <= gate_.frontier(); };
    parked.kept.erase(std::remove_if(parked.kept.begin(), parked.kept.end(), over), parked.kept.end());
    const uint64_t next_step = gate_.next_step(worker);
    if (next_step > parked.first_step) parked.kept.push_back({parked.first_step, next_step});
  }
  parked.parked = true;
  gate_.Leave(worker);
  LookAtAll();
  return true;
}

bool StepBook::Takes(WorkerId worker, uint64_t step) const {
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return true;
  const Worker& sender = found->second;
  const bool kept = std::any_of(sender.kept.begin(), sender.kept.end(), [step](const auto& steps) {
    return steps.first <= step && step < steps.second;
  });
  return kept || (!sender.parked && step >= sender.first_step);
}

void StepBook::NoteAcknowledged(WorkerId worker, uint64_t next_step) {
  gate_.Raise(worker, next_step);
  LookAtAll();
}

void StepBook::SkipTo(uint64_t frontier) {
  gate_.SkipTo(frontier);
  LookAtAll();
}

uint64_t StepBook::late_steps(WorkerId worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? 0 : found->second.late_steps;
}

absl::Status StepBook::CheckStep(WorkerId worker, uint64_t step, absl::Span<const uint32_t> shards) const {
  // A step that is open has nothing of it that would count: what comes is no repetition.
  if (gate_.synchronous() && !Takes(worker, step) &&
      std::none_of(shards.begin(), shards.end(), [&](uint32_t shard) { return Closed(step, shard); })) {
    return NotInStep(step);
  }
  // An asynchronous worker may know of acknowledgements that this process does not, until its next heartbeat.
  const uint64_t known = gate_.bound() < 0 ? limits::kStepMax
                                           : std::max(gate_.next_step(worker), gate_.frontier()) +
                                                 static_cast<uint64_t>(gate_.bound());
  if (step >= known + limits::kStepsAheadMax) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step, ", the worker's next is ", known,
                                                   ", allowed are ", limits::kStepsAheadMax, " beyond it"));
  }
  return absl::OkStatus();
}

bool StepBook::NoteBegun(WorkerId worker, Incarnation incarnation, uint64_t step, uint64_t sequence) {
  closed_.NoteFirstPush(step, sequence);
  const auto found = workers_.find(worker);
  // Expelled or started anew meanwhile.
  if (found == workers_.end() || found->second.incarnation != incarnation) return false;
  found->second.next_begun = std::max(found->second.next_begun, step + 1);
  if (quorum_.on()) return false;
  return std::all_of(workers_.begin(), workers_.end(), [step](const auto& other) {
    return other.second.parked || other.second.next_begun > step;
  });
}

absl::Status StepBook::CheckCounts(WorkerId worker, uint64_t step, absl::Span<const uint32_t> shards,
                                   absl::Span<const PushOutcome> outcomes) const {
  if (!gate_.synchronous()) {
    if (std::count(outcomes.begin(), outcomes.end(), PushOutcome::kLate) == 0) return absl::OkStatus();
    return absl::AbortedError(
        absl::StrCat("step ", step, " is so far behind the worker's others that nobody knows of it"));
  }
  const bool takes = Takes(worker, step);
  bool pending = false;
  for (size_t i = 0; i < shards.size(); ++i) {
    const uint64_t first_open = closed_.first_open(shards[i]);
    const bool closed = Closed(step, shards[i]);
    const bool open = !closed && (outcomes[i] == PushOutcome::kTaken || outcomes[i] == PushOutcome::kPending);
    if (!takes && open) return NotInStep(step);
    if (outcomes[i] == PushOutcome::kLate || (closed && outcomes[i] == PushOutcome::kTaken)) {
      return absl::AbortedError(absl::StrCat("step ", step, " was closed without this push; the next is ",
                                             std::max(gate_.frontier(), first_open)));
    }
    if (!closed || outcomes[i] != PushOutcome::kPending) continue;
    if (step >= first_open) {
      return absl::AbortedError(absl::StrCat("step ", step, " was given up without this push"));
    }
    pending = true;
  }
  if (!pending) return absl::OkStatus();
  // The step was closing meanwhile: by the next try the ledger knows whether the push counted.
  return absl::UnavailableError("the step is being closed; ask again");
}

bool StepBook::NoteParts(WorkerId worker, Incarnation incarnation, uint64_t step,
                         absl::Span<const uint32_t> shards, size_t all, size_t here) {
  Worker& sender = workers_[worker];
  const bool bounded = gate_.bound() != StalenessGate::kUnlimited;
  const size_t expected = decides() && bounded ? all : here;
  if (decides() && gate_.synchronous()) {
    for (const uint32_t shard : shards) {
      if (!Closed(step, shard)) contributed_[step][shard].insert({worker, incarnation});
    }
    std::vector<uint32_t>& touched = touched_[step];
    touched.insert(touched.end(), shards.begin(), shards.end());
  }
  if (decides() && step < gate_.next_step(worker)) return false;  // Was complete before.
  // Of pushes that were given up.
  sender.delivered.erase(sender.delivered.begin(),
                         sender.delivered.lower_bound(step - std::min(step, limits::kStepsAheadMax)));
  Shards& delivered = sender.delivered[step];
  delivered.reserve(expected);
  delivered.insert(shards.begin(), shards.end());
  if (delivered.size() < expected) return false;
  sender.delivered.erase(step);
  if (!decides()) return true;
  gate_.Advance(worker, step);
  sender.next_pushed = std::max(sender.next_pushed, step + 1);
  sender.late_in_a_row = 0;
  const auto open = contributed_.find(step);
  if (gate_.synchronous() && expected < closed_.shards() && open != contributed_.end()) {
    // The shards that it does not push wait for it no longer.
    for (const auto& [shard, contributors] : open->second) touched_[step].push_back(shard);
  }
  return true;
}

bool StepBook::MayReport(WorkerId worker, Incarnation incarnation, uint64_t step) const {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.incarnation != incarnation) return false;
  if (gate_.synchronous() && !Takes(worker, step)) return false;
  const uint64_t ahead = limits::kStepsAheadMax + static_cast<uint64_t>(std::max(0, gate_.bound()));
  return step < std::max(gate_.next_step(worker), gate_.frontier()) + ahead;
}

bool StepBook::MayAnswer(uint64_t step, absl::Span<const uint32_t> shards) const {
  if (!gate_.synchronous()) return gate_.Open(step);
  return std::all_of(shards.begin(), shards.end(), [&](uint32_t shard) { return Closed(step, shard); });
}

std::vector<StepClosing> StepBook::TakeClosings() {
  std::vector<StepClosing> closings;
  if (!decides() || !gate_.synchronous()) return closings;
  if (looked_at_ != gate_.frontier()) {
    looked_at_ = gate_.frontier();
    touched_.clear();
    for (const auto& [step, shards] : contributed_) {
      for (const auto& [shard, contributors] : shards) touched_[step].push_back(shard);
    }
  }
  for (auto& [step, shards] : std::exchange(touched_, {})) {
    std::sort(shards.begin(), shards.end());
    TakeComplete(step, shards, &closings);
  }
  for (const StepClosing& closing : closings) closed_.Note(closing);
  return closings;
}

void StepBook::TakeComplete(uint64_t step, const std::vector<uint32_t>& shards,
                            std::vector<StepClosing>* closings) {
  const auto open = contributed_.find(step);
  if (open == contributed_.end()) return;
  std::vector<const Shards*> awaited;
  for (const WorkerId worker : gate_.Awaited(step)) {
    const auto found = workers_.find(worker);
    if (found == workers_.end()) continue;
    // Steps close in their order: it may push this shard in both.
    if (gate_.next_step(worker) < step) return;
    const auto delivered = found->second.delivered.find(step);
    if (delivered == found->second.delivered.end()) return;  // Nothing yet.
    awaited.push_back(&delivered->second);
  }
  // A push counts as a whole, or not at all: whose is not here may be left out.
  if (quorum_.on() && !awaited.empty()) return;
  // Those with the same contributors together: one record.
  std::map<std::set<Contributor>, std::vector<uint32_t>> closed;
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
    closings->push_back({step, std::move(of), {contributors.begin(), contributors.end()}});
  }
}

absl::Time StepBook::WatchQuorum(absl::Time now) {
  if (!quorum_.on() || !gate_.synchronous()) return absl::InfiniteFuture();
  const uint64_t step = gate_.frontier();
  size_t pushed = 0;
  for (const auto& [worker, progress] : workers_) {
    if (progress.next_pushed > step && gate_.active(worker)) ++pushed;
  }
  const std::vector<WorkerId> awaited = gate_.Awaited(step);
  // Closed in part before there was a quorum: who is left out now would count in part.
  if (closed_.first_open_of_any() > step) return absl::InfiniteFuture();
  const absl::Time at = quorum_.Note(step, pushed, awaited.size(), now);
  // Who was late already and sends is waited for longer each time: on a slow link it would never be in time.
  absl::Duration longer;
  for (const WorkerId worker : awaited) {
    const auto found = workers_.find(worker);
    if (found == workers_.end() || found->second.delivered.count(step) == 0) continue;
    const int times = std::min(found->second.late_in_a_row, kLongerMax);
    longer = std::max(longer, quorum_.grace() * ((1 << times) - 1));
  }
  return at + std::min(longer, limits::kReplyWaitMax);
}

std::vector<WorkerId> StepBook::ParkLate() {
  const std::vector<WorkerId> late = gate_.Awaited(gate_.frontier());
  for (const WorkerId worker : late) {
    // All of its push or nothing counts: what is left of it comes again, in another step.
    ForgetContributions(worker);
    Worker& parked = workers_[worker];
    parked.parked = true;
    parked.kept.clear();
    parked.delivered.clear();
    ++parked.late_steps;
    ++parked.late_in_a_row;
    gate_.Leave(worker);
  }
  LookAtAll();
  return late;
}

void StepBook::ForgetContributions(WorkerId worker) {
  for (auto& [step, shards] : contributed_) {
    for (auto& [shard, contributors] : shards) {
      const auto first = contributors.lower_bound({worker, Incarnation(0)});
      const auto last = contributors.upper_bound({worker, Incarnation(UINT64_MAX)});
      contributors.erase(first, last);
    }
  }
}

void StepBook::ForgetPartsOf(absl::Span<const uint32_t> shards) {
  for (const uint32_t shard : shards) {
    for (auto& [step, contributions] : contributed_) contributions.erase(shard);
    for (auto& [worker, progress] : workers_) {
      for (auto& [step, delivered] : progress.delivered) delivered.erase(shard);
    }
  }
}

uint64_t StepBook::FirstStepNobodyHasBegun() const {
  uint64_t first = std::max(gate_.frontier(), closed_.first_open_of_any());
  for (const auto& [worker, progress] : workers_) {
    first = std::max(first, gate_.next_step(worker));
    if (!progress.delivered.empty()) first = std::max(first, progress.delivered.rbegin()->first + 1);
  }
  return first;
}

uint64_t StepBook::BeginAnew(int bound, uint64_t first_step) {
  first_step = std::max(first_step, FirstStepNobodyHasBegun());
  gate_ = StalenessGate(bound, first_step);
  contributed_.clear();
  touched_.clear();
  closed_.ForgetFirstPushes();
  for (auto& [worker, progress] : workers_) progress.delivered.clear();
  LookAtAll();
  return first_step;
}

}  // namespace recon
