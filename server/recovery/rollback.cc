#include "server/recovery/rollback.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/snapshot/manifest.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/log_survey.h"
#include "server/recovery/state_recovery.h"
#include "server/store/push_ledger.h"

namespace recon {
namespace {

constexpr uint64_t kToTheEnd = std::numeric_limits<uint64_t>::max();

LoggedPush PushOf(const FrameHeader& header) { return {header.worker, header.incarnation, header.step}; }

LoggedPushes PushesOf(const RollbackRecord& record) {
  LoggedPushes pushes;
  for (const PushId& id : record.left_out()) pushes.emplace(id.worker(), id.incarnation(), id.step());
  return pushes;
}

uint64_t SamplesOf(const std::map<ControlState::SplitKey, Completion>& completions) {
  uint64_t samples = 0;
  for (const auto& [split, completion] : completions) {
    if (completion.kind() == LEASE_TRAIN) samples += completion.end() - completion.begin();
  }
  return samples;
}

absl::Status AddControl(const std::vector<std::string>& records, ControlState* state) {
  for (const std::string& record : records) RECON_RETURN_IF_ERROR(AddControlRecord(record, state));
  return absl::OkStatus();
}

// Whether some shard of the snapshot has one of the pushes that are to be left out.
bool HasAnyOf(const Manifest& manifest, const RollbackRecord& plan) {
  for (const PushId& id : plan.left_out()) {
    for (const Ledger& listed : manifest.ledgers()) {
      PushLedger ledger;
      ledger.Restore({listed.entries().begin(), listed.entries().end()});
      if (ledger.Taken(WorkerId(id.worker()), Incarnation(id.incarnation()), id.step())) return true;
    }
  }
  return false;
}

// Plans one rollback.
class Planner {
 public:
  Planner(const RollbackRequest& request, const RollbackBasis& basis) : request_(request), basis_(basis) {}

  absl::StatusOr<RollbackReply> Plan() {
    RECON_RETURN_IF_ERROR(CheckRequest());
    RECON_RETURN_IF_ERROR(ReadManifests());
    RECON_ASSIGN_OR_RETURN(histories_, LogSurvey::Histories(basis_.files, basis_.log_directory));
    log_first_ = histories_.empty() ? 0 : histories_.begin()->first;
    reply_.set_last_sequence(basis_.last_sequence);
    NoteReach();
    RECON_RETURN_IF_ERROR(FindPushes());
    if (request_.generation() != 0) {
      RECON_RETURN_IF_ERROR(PlanGeneration());
    } else if (request_.sequence() != 0) {
      RECON_RETURN_IF_ERROR(PlanSequence());
    } else {
      RECON_RETURN_IF_ERROR(PlanUndo());
    }
    const Manifest& base = *manifests_.at(reply_.plan().generation());
    reply_.set_snapshot_sequence(base.sequence());
    RECON_RETURN_IF_ERROR(CountWhatComes(base));
    // Nothing is stopped for a snapshot that cannot be read.
    if (!request_.dry_run()) {
      RECON_RETURN_IF_ERROR(basis_.reader->Verify(Generation(base.generation()), {}));
    }
    return std::move(reply_);
  }

 private:
  absl::Status CheckRequest() const {
    const int asked = (request_.generation() != 0 ? 1 : 0) + (request_.sequence() != 0 ? 1 : 0) +
                      (request_.undo_size() > 0 ? 1 : 0);
    if (asked == 1) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("a rollback is to a snapshot, to a sequence, or without some pushes: ", asked,
                     " of the three were asked for"));
  }

  // Those that can be read.
  absl::Status ReadManifests() {
    RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, basis_.reader->List());
    for (const Generation generation : generations) {
      absl::StatusOr<Manifest> manifest = basis_.reader->ReadManifest(generation);
      if (absl::IsDataLoss(manifest.status())) continue;
      RECON_RETURN_IF_ERROR(manifest.status());
      if (manifest->job_id() != basis_.job_id) continue;  // What an import brought.
      manifests_.emplace(generation.value(), std::make_unique<Manifest>(*std::move(manifest)));
    }
    if (manifests_.empty()) return absl::NotFoundError("there is no snapshot to go back to, yet");
    return absl::OkStatus();
  }

  // In the log, those that are to be undone.
  absl::Status FindPushes() {
    std::map<std::pair<uint32_t, uint64_t>, size_t> wanted;  // Worker and step: which of the request.
    for (int i = 0; i < request_.undo_size(); ++i) {
      const PushName& push = request_.undo(i);
      const auto number = basis_.control.workers.find(push.worker());
      if (number == basis_.control.workers.end()) {
        return absl::NotFoundError(absl::StrCat("no worker of this job is called '", push.worker(), "'"));
      }
      wanted[{number->second, push.step()}] = static_cast<size_t>(i);
    }
    found_.resize(static_cast<size_t>(request_.undo_size()));
    if (wanted.empty() || log_first_ == 0) return absl::OkStatus();
    LogSurvey log([&](uint64_t sequence, const FrameHeader& header) {
      const auto match = wanted.find({header.worker, header.step});
      if (match == wanted.end()) return;
      const uint64_t asked = request_.undo(static_cast<int>(match->second)).incarnation();
      if (asked != 0 && asked != header.incarnation) return;
      Found& found = found_[match->second];
      found.pushes.insert(PushOf(header));
      if (found.frames++ == 0) found.first = sequence;
    });
    return log.Read(basis_.files, basis_.log_directory, log_first_).status();
  }

  // Of a record of the log.
  uint64_t HistoryAt(uint64_t sequence) const {
    const auto after = histories_.upper_bound(sequence);
    return after == histories_.begin() ? 0 : std::prev(after)->second;
  }
  // The log leads from the snapshot to that record.
  bool Reaches(const Manifest& manifest, uint64_t sequence) const {
    if (manifest.sequence() == sequence) return true;
    return log_first_ != 0 && log_first_ <= FirstRecordFor(manifest) && manifest.sequence() < sequence &&
           HistoryAt(manifest.sequence() + 1) == manifest.history() &&
           HistoryAt(sequence) == manifest.history();
  }

  // And to the state that there is: the last record may still be one of the history before.
  bool ReachesNow(const Manifest& manifest) const {
    if (manifest.history() != basis_.history) return false;
    if (manifest.sequence() == basis_.last_sequence) return true;
    return log_first_ != 0 && log_first_ <= FirstRecordFor(manifest) &&
           HistoryAt(manifest.sequence() + 1) == manifest.history();
  }

  void NoteReach() {
    reply_.set_oldest_generation(manifests_.begin()->first);
    uint64_t oldest = basis_.last_sequence;
    for (const auto& [generation, manifest] : manifests_) {
      if (ReachesNow(*manifest)) oldest = std::min(oldest, manifest->sequence());
    }
    reply_.set_oldest_sequence(oldest);
  }
  std::string Reach() const {
    return absl::StrCat("snapshots and the push log reach back to sequence ", reply_.oldest_sequence(),
                        ", the last is ", basis_.last_sequence);
  }

  absl::Status PlanGeneration() {
    if (manifests_.count(request_.generation()) == 0) {
      std::vector<uint64_t> there;
      for (const auto& [generation, manifest] : manifests_) there.push_back(generation);
      return absl::NotFoundError(absl::StrCat("there is no snapshot ", request_.generation(),
                                              " that can be read, but ", absl::StrJoin(there, ", ")));
    }
    reply_.mutable_plan()->set_generation(request_.generation());
    reply_.mutable_plan()->set_keep_completions(request_.keep_completions());
    reply_.mutable_plan()->set_reason(absl::StrCat("to snapshot ", request_.generation()));
    return absl::OkStatus();
  }

  absl::Status PlanSequence() {
    const uint64_t sequence = request_.sequence();
    if (sequence > basis_.last_sequence) {
      return absl::NotFoundError(absl::StrCat("there is no record ", sequence, " yet: ", Reach()));
    }
    const Manifest* base = nullptr;
    for (const auto& [generation, manifest] : manifests_) {
      if (Reaches(*manifest, sequence)) base = manifest.get();
    }
    if (base == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("no snapshot and the push log behind it lead to sequence ", sequence, ": ", Reach()));
    }
    RollbackRecord* plan = reply_.mutable_plan();
    plan->set_generation(base->generation());
    plan->set_sequence(sequence);
    plan->set_keep_completions(request_.keep_completions());
    plan->set_reason(absl::StrCat("to sequence ", sequence));
    return absl::OkStatus();
  }

  absl::Status PlanUndo() {
    uint64_t first = kToTheEnd;
    RollbackRecord* plan = reply_.mutable_plan();
    std::vector<std::string> names;
    for (int i = 0; i < request_.undo_size(); ++i) {
      const PushName& push = request_.undo(i);
      names.push_back(absl::StrCat(push.worker(), ":", push.step()));
      if (found_[static_cast<size_t>(i)].frames == 0) {
        return absl::NotFoundError(absl::StrCat("push ", names.back(), " is not in the push log, which has ",
                                                "records ", log_first_, " to ", basis_.last_sequence));
      }
      const Found& found = found_[static_cast<size_t>(i)];
      if (found.pushes.size() > 1) {
        std::vector<uint64_t> processes;
        for (const LoggedPush& each : found.pushes) processes.push_back(std::get<1>(each));
        return absl::InvalidArgumentError(absl::StrCat(
            "push ", names.back(), " was made by ", processes.size(),
            " processes of that name: say which with --incarnation ", absl::StrJoin(processes, " or ")));
      }
      for (const auto& [worker, incarnation, step] : found.pushes) {
        PushId* id = plan->add_left_out();
        id->set_worker(worker);
        id->set_incarnation(incarnation);
        id->set_step(step);
      }
      first = std::min(first, found.first);
      reply_.set_frames_left_out(reply_.frames_left_out() + found.frames);
    }
    const Manifest* base = nullptr;
    for (const auto& [generation, manifest] : manifests_) {
      // Of a push of many frames some may be where the log does not reach any more.
      const bool before = manifest->sequence() < first && !HasAnyOf(*manifest, *plan);
      if (before && ReachesNow(*manifest)) base = manifest.get();
    }
    if (base == nullptr) {
      const bool before_rollback = HistoryAt(first) != basis_.history;
      return absl::FailedPreconditionError(absl::StrCat(
          "push ", absl::StrJoin(names, ", "), " begins with record ", first, ", ",
          before_rollback ? "which lies before the last rollback: " : "before which there is no snapshot: ",
          Reach()));
    }
    plan->set_generation(base->generation());
    plan->set_sequence(kToTheEnd);
    plan->set_keep_completions(true);
    plan->set_reason(absl::StrCat("without push ", absl::StrJoin(names, ", ")));
    return absl::OkStatus();
  }

  // Pushes that are applied again, and samples that are trained again.
  absl::Status CountWhatComes(const Manifest& base) {
    RECON_ASSIGN_OR_RETURN(ControlState then, DecodeControl(base.control(), base.model()));
    const RollbackRecord& plan = reply_.plan();
    if (plan.sequence() > base.sequence()) {
      LoggedPushes again;
      LogSurvey log([&](uint64_t, const FrameHeader& header) { again.insert(PushOf(header)); });
      RECON_RETURN_IF_ERROR(
          log.Read(basis_.files, basis_.log_directory, base.sequence() + 1, plan.sequence()).status());
      RECON_RETURN_IF_ERROR(AddControl(log.control(), &then));
      for (const LoggedPush& push : PushesOf(plan)) again.erase(push);
      reply_.set_pushes_again(again.size());
    }
    if (plan.keep_completions()) return absl::OkStatus();
    const uint64_t done = SamplesOf(basis_.control.completions);
    reply_.set_samples_again(done - std::min(done, SamplesOf(then.completions)));
    return absl::OkStatus();
  }

  struct Found {
    LoggedPushes pushes;
    uint64_t frames = 0;
    uint64_t first = 0;
  };

  const RollbackRequest& request_;
  const RollbackBasis& basis_;
  RollbackReply reply_;
  std::map<uint64_t, std::unique_ptr<Manifest>> manifests_;
  uint64_t log_first_ = 0;
  std::vector<Found> found_;                // As in the request.
  std::map<uint64_t, uint64_t> histories_;  // As LogSurvey::Histories().
};

// A step that no worker has begun, by what a manifest knows of them.
uint64_t FirstStepAfter(const Manifest& manifest) {
  uint64_t first = manifest.frontier_step();
  for (const Ledger& ledger : manifest.ledgers()) {
    for (const LedgerEntry& entry : ledger.entries()) first = std::max(first, entry.last_step() + 1);
  }
  return first;
}

}  // namespace

absl::StatusOr<RollbackReply> PlanRollback(const RollbackRequest& request, const RollbackBasis& basis) {
  return Planner(request, basis).Plan();
}

absl::StatusOr<Generation> LastGoodBefore(absl::Time when, const SnapshotReader& reader, uint64_t job_id,
                                          const RollbackRecord& last) {
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  std::optional<Generation> newest;
  bool tried = false;
  for (auto it = generations.rbegin(); it != generations.rend(); ++it) {
    const absl::StatusOr<Manifest> manifest = reader.ReadManifest(*it);
    if (absl::IsDataLoss(manifest.status())) continue;
    RECON_RETURN_IF_ERROR(manifest.status());
    const bool finite = manifest->has_non_finite_values() && manifest->non_finite_values() == 0;
    const bool before = manifest->created_unix_ms() <= absl::ToUnixMillis(when);
    if (!finite || !before || manifest->job_id() != job_id) continue;
    tried |= last.automatic() && it->value() == last.published();
    if (!tried || it->value() < last.generation()) return *it;
    if (!newest) newest = *it;
  }
  if (newest) return *newest;
  return absl::NotFoundError("there is no snapshot from before that whose values are known to be finite");
}

absl::StatusOr<RolledBack> RollBack(const RollbackRecord& record, const SnapshotReader& reader,
                                    FileSystem* files, const std::string& log_directory,
                                    const Manifest& newest, const ControlState& now, ParamServer* params) {
  RolledBack result;
  RECON_ASSIGN_OR_RETURN(result.base, reader.ReadManifest(Generation(record.generation())));
  const Manifest& base = result.base;
  // Where the history before ends; what a crash has left there is set aside as ever.
  LogSurvey all;
  result.end = std::max(newest.sequence(), record.end());
  RECON_ASSIGN_OR_RETURN(const auto histories, LogSurvey::Histories(files, log_directory));
  if (!histories.empty()) {
    const uint64_t from =
        std::max(histories.begin()->first, std::min(FirstRecordFor(newest), FirstRecordFor(base)));
    RECON_ASSIGN_OR_RETURN(const LogEnd end,
                           all.Read(files, log_directory, from, record.done() ? record.end() : kToTheEnd));
    if (!record.done()) {
      RECON_RETURN_IF_ERROR(SetAside(files, log_directory, end));
      result.end = std::max(result.end, all.last());
    }
  }
  result.first_step =
      std::max({all.first_step(), FirstStepAfter(newest), FirstStepAfter(base), record.first_step()});

  RECON_RETURN_IF_ERROR(LoadInto(params, reader, base));
  RECON_ASSIGN_OR_RETURN(ControlState then, DecodeControl(base.control(), base.model()));
  const uint64_t last = std::min(record.sequence(), result.end);
  if (last > base.sequence()) {
    params->replay()->LeaveOut(PushesOf(record));
    Replayer replayer(base, last, params, &then);
    const absl::StatusOr<LogEnd> end = ReadLog(files, log_directory, FirstRecordFor(base), &replayer);
    params->replay()->EndReplay();
    if (!end.ok() && !absl::IsCancelled(end.status())) {
      return absl::Status(end.status().code(), absl::StrCat(log_directory, ": ", end.status().message()));
    }
    if (params->position().sequence < last) {
      return absl::DataLossError(absl::StrCat(log_directory, ": goes to record ", params->position().sequence,
                                              ", needed is ", last));
    }
  }
  params->replay()->BeginHistory(result.end, result.first_step);
  if (record.done()) {
    Manifest begun = base;  // As if the damaged snapshot had been read.
    begun.set_history(record.history());
    Replayer replayer(begun, kToTheEnd, params, &then);
    const absl::StatusOr<LogEnd> end = ReadLog(files, log_directory, record.end() + 1, &replayer);
    params->replay()->EndReplay();
    RECON_RETURN_IF_ERROR(end.status());
    RECON_RETURN_IF_ERROR(SetAside(files, log_directory, *end));
  }
  result.control = now;
  if (!record.keep_completions() && !record.done()) result.control.completions = std::move(then.completions);
  return result;
}

}  // namespace recon
