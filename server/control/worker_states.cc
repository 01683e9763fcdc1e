#include "server/control/worker_states.h"

#include <algorithm>
#include <utility>

namespace recon {
namespace {

// Between two uploads that nobody waits for: so long, and so many times as long as the last one took.
constexpr absl::Duration kInterval = absl::Seconds(10);
constexpr int kUploadShare = 20;
// Between two that somebody waits for.
constexpr absl::Duration kHurriedInterval = absl::Milliseconds(100);
// Numbers of uploads, and of states that servers go back to, in one cluster epoch.
constexpr int kUploadBits = 24;
// A worker that has not brought its state for so long is not waited for: another one is asked.
constexpr absl::Duration kPatience = absl::Seconds(60);

}  // namespace

absl::Status WorkerStates::Check(const WorkerStateReport& report) const {
  if (report.next() == 0 || report.line() == 0) return absl::OkStatus();
  if (report.line() >= line_ && report.line() <= last_upload_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the job goes on from another state than this worker's, which was not heard of for too long: start the "
      "worker again, it takes the job's state then");
}

void WorkerStates::Report(WorkerId worker, const WorkerStateReport& report) {
  Worker& known = workers_[worker];
  if (report.next() > 0) {
    known.holds = true;
    known.takes = false;
    known.next = report.next() - 1;
    line_ = std::max(line_, report.line());
  } else if (report.has_waits_for()) {
    known.holds = false;
  }
  known.waits_for = report.has_waits_for() ? std::make_optional(report.waits_for()) : std::nullopt;
  known.uncovered = report.uncovered();
  known.at = report.at();
  known.through = std::max(known.through, report.through());  // It may be older than the last lease.
  known.asks_end = report.asks_end();
  // It is asked anew, or another one.
  if (asked_ == worker && report.failed() == upload_) asked_.reset();
}

void WorkerStates::BeginEpoch(uint64_t cluster_epoch) {
  last_upload_ = std::max(last_upload_, cluster_epoch << kUploadBits);
  asked_.reset();
}

void WorkerStates::Forget(WorkerId worker) {
  workers_.erase(worker);
  if (asked_ == worker) asked_.reset();
}

bool WorkerStates::Due(uint64_t frontier, absl::Time now) const {
  if (frontier <= uploaded_) return false;
  const bool hurried = std::any_of(workers_.begin(), workers_.end(), [this](const auto& entry) {
    const Worker& worker = entry.second;
    return worker.uncovered || (worker.waits_for && *worker.waits_for > uploaded_);
  });
  const absl::Duration since = now - uploaded_at_;
  return since >= (hurried ? kHurriedInterval : std::max(kInterval, kUploadShare * took_));
}

std::optional<WorkerId> WorkerStates::Ask(uint64_t frontier, absl::Time now) {
  if (asked_ && now - asked_at_ < kPatience) return std::nullopt;
  if (!Due(frontier, now)) return std::nullopt;
  // Whoever has come furthest: what others wait for is newer then. Of those, one that has no work left until
  // its splits are saved: another may be within a step, which waits for that one.
  const auto better = [](const Worker& one, const Worker& other) {
    return std::make_pair(one.next, one.uncovered) > std::make_pair(other.next, other.uncovered);
  };
  const Worker* best = nullptr;
  std::optional<WorkerId> chosen;
  for (const auto& [id, worker] : workers_) {
    if (!worker.holds || (best != nullptr && !better(worker, *best))) continue;
    if (asked_ == id && workers_.size() > 1) continue;  // It did not bring it.
    best = &worker;
    chosen = id;
  }
  if (!chosen) return std::nullopt;
  asked_ = chosen;
  asked_at_ = now;
  upload_ = NewUpload();
  staged_.clear();
  return chosen;
}

std::optional<uint64_t> WorkerStates::OnStaged(uint32_t server, uint64_t upload, uint64_t step,
                                               const std::set<uint32_t>& holders) {
  if (!asked_ || upload != upload_) return std::nullopt;
  staged_[server] = step;
  for (const uint32_t holder : holders) {
    const auto found = staged_.find(holder);
    if (found == staged_.end()) return std::nullopt;
    if (found->second == step) continue;
    asked_.reset();  // Its sender has called two states by one number.
    return std::nullopt;
  }
  return step;
}

void WorkerStates::OnUploaded(uint64_t step, absl::Time now) {
  uploaded_ = std::max(uploaded_, step);
  uploaded_at_ = now;
  took_ = now - asked_at_;
  asked_.reset();
}

void WorkerStates::OnRestored() {
  uploaded_ = 0;
  uploaded_at_ = absl::InfinitePast();  // Whoever has a newer one brings it at once.
  asked_.reset();
}

void WorkerStates::NotePass(uint32_t data_epoch, bool begun, uint64_t frontier) {
  if (pass_ == data_epoch) return;
  pass_ = data_epoch;
  pass_begins_ = begun ? 0 : frontier;
}

void WorkerStates::NoteGranted(WorkerId worker, uint64_t batches) {
  Worker& known = workers_[worker];
  known.through = std::max(known.through, known.at + batches);
}

void WorkerStates::NoteNothingLeft(WorkerId worker, uint32_t data_epoch) {
  const Worker& asks = workers_[worker];
  if (!asks.asks_end || ended_pass_ == data_epoch) return;
  const bool all_within = std::all_of(workers_.begin(), workers_.end(),
                                      [&asks](const auto& entry) { return entry.second.through <= asks.at; });
  if (!all_within) return;
  ended_pass_ = data_epoch;
  ends_at_ = asks.at;
}

WorkerStateReply WorkerStates::Answer(WorkerId worker, uint64_t frontier, uint32_t data_epoch, bool may_take,
                                      bool all_given) {
  const bool others_hold = std::any_of(workers_.begin(), workers_.end(), [worker](const auto& entry) {
    return entry.first != worker && (entry.second.holds || entry.second.takes);
  });
  Worker& asks = workers_[worker];
  WorkerStateReply reply;
  reply.set_wanted(asked_ == worker ? upload_ : 0);
  reply.set_uploaded(uploaded_);
  reply.set_saved(saved_);
  reply.set_ready(true);
  reply.set_frontier(frontier);
  reply.set_data_epoch(data_epoch);
  reply.set_data_epoch_begins(pass_ == data_epoch ? pass_begins_ : frontier);
  if (all_given) {
    uint64_t reach = 0;
    for (const auto& [other, known] : workers_) {
      if (other != worker) reach = std::max(reach, known.through);
    }
    reply.set_others_reach(reach);
  }
  if (ended_pass_) {
    reply.set_ended_pass(*ended_pass_);
    reply.set_ends_at(ends_at_);
  }
  if (!others_hold && may_take && asks.waits_for) {
    // Nobody who lives has a newer one: from here on this worker has it. It asks again if it has not heard of
    // it. Who is not heard of now has none when it is.
    if (!asks.takes) line_ = NewUpload();
    asks.takes = true;
    reply.set_take(true);
  }
  reply.set_line(line_);
  return reply;
}

}  // namespace recon
