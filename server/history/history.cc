#include "server/history/history.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/clipped_text.h"
#include "server/history/status_changes.h"

namespace recon {
namespace {

constexpr const char* kJobSeries[] = {"loss",
                                      "samples_per_second",
                                      "pushes_per_second",
                                      "staleness",
                                      "push_bytes_per_second",
                                      "pull_bytes_per_second",
                                      "push_latency_ms",
                                      "computing",
                                      "waiting",
                                      "link",
                                      "workers",
                                      "data_epochs",
                                      "log_bytes",
                                      "updates"};
constexpr const char* kEvaluationSeries[] = {"accuracy", "loss"};
constexpr const char* kWorkerSeries[] = {"loss",
                                         "samples_per_second",
                                         "staleness",
                                         "push_bytes_per_second",
                                         "pull_bytes_per_second",
                                         "push_latency_ms",
                                         "computing",
                                         "waiting",
                                         "link"};
constexpr const char* kPhaseEvents[] = {"running", "draining", "finished"};
constexpr size_t kNameBytes = 256;
// Clocks that are kept right are set back by less.
constexpr int64_t kToldBackMs = 1000;

bool EarlierNumber(const HistoryEvent* a, const HistoryEvent* b) { return a->number() < b->number(); }

float LossOf(const MemberStatus& member) {
  // A worker that has not computed a batch yet has none.
  return member.progress().batches() == 0 ? NAN : static_cast<float>(member.progress().last_loss());
}

// Sums what is known.
class Mean {
 public:
  void Add(double value, double weight = 1) {
    if (std::isnan(value) || weight <= 0) return;
    sum_ += value * weight;
    weight_ += weight;
  }
  float mean() const { return weight_ > 0 ? static_cast<float>(sum_ / weight_) : NAN; }
  float sum() const { return weight_ > 0 ? static_cast<float>(sum_) : NAN; }

 private:
  double sum_ = 0, weight_ = 0;
};

}  // namespace

History::History(uint64_t job_id, const Limits& limits)
    : limits_(limits),
      job_id_(job_id),
      job_(kJobSeries, limits.job),
      evaluations_(kEvaluationSeries, limits.evaluations) {}

void History::Note(std::shared_ptr<const StatusReply> now, int64_t unix_ms) {
  const StatusReply& status = *now;
  if (unix_ms < latest_ms_) SetBack(unix_ms);
  latest_ms_ = unix_ms;
  if (!status.model().empty()) model_ = ClippedText(status.model(), kNameBytes);
  for (const MemberStatus& member : status.members()) {
    if (member.state() == MEMBER_GONE) {
      rates_.Forget(member.name());
    } else {
      rates_.Note(member);
    }
  }
  const uint64_t pushes_before = before_ == nullptr ? 0 : before_->pushes();
  if (status.pushes() > pushes_before) last_push_ms_ = unix_ms;
  NoteEvents(status, unix_ms);
  NoteEvaluations(status, unix_ms);
  if (unix_ms - job_at_ms_ >= limits_.job_interval_ms || unix_ms < job_at_ms_) NoteJob(status, unix_ms);
  if (unix_ms - workers_at_ms_ >= limits_.worker_interval_ms || unix_ms < workers_at_ms_)
    NoteWorkers(status, unix_ms);
  before_ = std::move(now);
}

void History::SetBack(int64_t unix_ms) {
  const int64_t limit_ms = unix_ms - 1, by_ms = limit_ms - latest_ms_;
  const auto move = [&](int64_t ms) { return ms > limit_ms ? ms + by_ms : ms; };
  job_.MoveLater(limit_ms, by_ms);
  evaluations_.MoveLater(limit_ms, by_ms);
  for (auto& [name, track] : workers_) track.MoveLater(limit_ms, by_ms);
  MoveEventsLater(limit_ms, by_ms);
  last_push_ms_ = move(last_push_ms_);
  if (-by_ms <= kToldBackMs) return;
  HistoryEvent event;
  event.set_kind("clock");
  event.set_unix_ms(unix_ms);
  event.set_text(absl::StrFormat("set back by %.1f s: what was noted as later has been moved",
                                 static_cast<double>(-by_ms) / 1000));
  AddEvent(std::move(event));
}

void History::MoveEventsLater(int64_t limit_ms, int64_t by_ms) {
  std::vector<HistoryEvent*> events;
  for (auto& [kind, of_kind] : events_) {
    for (HistoryEvent& event : of_kind) events.push_back(&event);
  }
  std::sort(events.begin(), events.end(), EarlierNumber);
  int64_t before = 0;
  for (HistoryEvent* event : events) {
    if (event->unix_ms() > limit_ms) event->set_unix_ms(std::max(before, event->unix_ms() + by_ms));
    before = std::max(before, event->unix_ms());
  }
}

void History::NoteEvents(const StatusReply& status, int64_t unix_ms) {
  for (HistoryEvent& event : StatusChanges(before_.get(), status)) {
    event.set_text(ClippedText(event.text(), limits_.text_bytes));
    if (Told(event)) continue;
    const bool known = event.unix_ms() > 0 && event.unix_ms() < unix_ms;
    if (!known) event.set_unix_ms(unix_ms);
    // A server that has been restarted sees all for the first time; its history does not.
    if (event.kind() == "joined" && workers_.count(event.subject()) > 0) event.set_kind("returned");
    AddEvent(std::move(event));
  }
}

bool History::Told(const HistoryEvent& event) const {
  const auto same = [&](const HistoryEvent& other) { return other.text() == event.text(); };
  if (std::count(std::begin(kPhaseEvents), std::end(kPhaseEvents), event.kind()) > 0) {
    const HistoryEvent* last = nullptr;
    for (const char* kind : kPhaseEvents) {
      const auto found = events_.find(kind);
      if (found == events_.end() || found->second.empty()) continue;
      if (last == nullptr || found->second.back().number() > last->number()) last = &found->second.back();
    }
    return last != nullptr && last->kind() == event.kind() && same(*last);
  }
  if (before_ != nullptr || (event.kind() != "rollback" && event.kind() != "diverged")) return false;
  const auto found = events_.find(event.kind());
  return found != events_.end() && std::any_of(found->second.begin(), found->second.end(), same);
}

void History::AddEvent(HistoryEvent event) {
  event.set_number(next_event_++);
  event.set_subject(ClippedText(event.subject(), kNameBytes));
  event.set_text(ClippedText(event.text(), limits_.text_bytes));
  std::deque<HistoryEvent>& of_kind = events_[event.kind()];
  of_kind.push_back(std::move(event));
  if (of_kind.size() > limits_.events_of_kind) of_kind.pop_front();
}

void History::NoteEvaluations(const StatusReply& status, int64_t unix_ms) {
  // In one process they only become more. The first status of one has those of before, too.
  for (int i = before_ == nullptr ? 0 : before_->evaluations_size(); i < status.evaluations_size(); ++i) {
    const EvalEntry& entry = status.evaluations(i);
    // After a rollback there are some of the same data epochs once more.
    const bool later = entry.unix_ms() > evaluations_.last_ms() && entry.unix_ms() <= unix_ms;
    if (before_ == nullptr && entry.data_epochs() <= evaluated_epochs_ && !later) continue;
    evaluations_.Add(std::min(entry.unix_ms(), unix_ms),
                     {static_cast<float>(entry.accuracy()), static_cast<float>(entry.loss())});
    evaluated_epochs_ = entry.data_epochs();
  }
}

void History::NoteJob(const StatusReply& status, int64_t unix_ms) {
  Mean loss, staleness, push_bytes, pull_bytes, latency, computing, waiting, link;
  int alive = 0;
  for (const MemberStatus& member : status.members()) {
    if (member.state() == MEMBER_GONE) continue;
    ++alive;
    loss.Add(LossOf(member));
    if (member.pushes() > 0) staleness.Add(member.staleness_mean());
    const WorkerRates& rates = *rates_.Find(member.name());
    push_bytes.Add(rates.push_bytes_per_second);
    pull_bytes.Add(rates.pull_bytes_per_second);
    latency.Add(rates.push_latency_ms, static_cast<double>(rates.pushes));
    computing.Add(rates.computing);
    waiting.Add(rates.waiting);
    link.Add(rates.link);
  }
  const double seconds = static_cast<double>(unix_ms - job_at_ms_) / 1000;
  const bool goes_on = before_ != nullptr && seconds > 0 && status.pushes() >= pushes_at_sample_;
  const float pushes =
      goes_on ? static_cast<float>(static_cast<double>(status.pushes() - pushes_at_sample_) / seconds) : NAN;
  job_.Add(unix_ms,
           {loss.mean(), static_cast<float>(status.samples_per_second()), pushes, staleness.mean(),
            push_bytes.sum(), pull_bytes.sum(), latency.mean(), computing.mean(), waiting.mean(), link.mean(),
            static_cast<float>(alive), static_cast<float>(status.data_epochs_completed()),
            static_cast<float>(status.log_bytes()), static_cast<float>(status.updates())});
  job_at_ms_ = unix_ms;
  pushes_at_sample_ = status.pushes();
}

Track* History::TrackOf(const std::string& worker) {
  const auto found = workers_.find(worker);
  if (found != workers_.end()) return &found->second;
  if (workers_.size() >= limits_.workers_max) return nullptr;
  return &workers_.emplace(worker, Track(kWorkerSeries, limits_.worker)).first->second;
}

void History::NoteWorkers(const StatusReply& status, int64_t unix_ms) {
  workers_at_ms_ = unix_ms;
  DropDeparted(status);
  for (const MemberStatus& member : status.members()) {
    if (member.state() == MEMBER_GONE) continue;
    Track* track = TrackOf(member.name());
    if (track == nullptr) continue;
    const WorkerRates& rates = *rates_.Find(member.name());
    const float staleness = member.pushes() > 0 ? static_cast<float>(member.staleness_mean()) : NAN;
    track->Add(unix_ms, {LossOf(member), static_cast<float>(member.progress().samples_per_second()),
                         staleness, rates.push_bytes_per_second, rates.pull_bytes_per_second,
                         rates.push_latency_ms, rates.computing, rates.waiting, rates.link});
  }
}

void History::DropDeparted(const StatusReply& status) {
  std::set<std::string> alive;
  for (const MemberStatus& member : status.members()) {
    if (member.state() != MEMBER_GONE) alive.insert(member.name());
  }
  std::vector<std::pair<int64_t, std::string>> departed;
  size_t newcomers = alive.size();
  for (const auto& [name, track] : workers_) {
    if (alive.count(name) == 0) departed.emplace_back(track.last_ms(), name);
    newcomers -= alive.count(name);
  }
  // Those that are there come first.
  const size_t room =
      limits_.workers_max - std::min(limits_.workers_max, workers_.size() - departed.size() + newcomers);
  const size_t keep = std::min(room, limits_.departed_max);
  if (departed.size() <= keep) return;
  std::sort(departed.begin(), departed.end());
  departed.resize(departed.size() - keep);
  for (const auto& [last_ms, name] : departed) workers_.erase(name);
}

JobHistory History::EncodeJob(int64_t since_ms) const {
  JobHistory history;
  history.set_job_id(job_id_);
  history.set_model(model_);
  *history.mutable_job() = job_.Encode("", since_ms);
  *history.mutable_evaluations() = evaluations_.Encode("", since_ms);
  std::vector<const HistoryEvent*> events;
  for (const auto& [kind, of_kind] : events_) {
    for (const HistoryEvent& event : of_kind) {
      if (event.unix_ms() > since_ms) events.push_back(&event);
    }
  }
  std::sort(events.begin(), events.end(), EarlierNumber);
  for (const HistoryEvent* event : events) *history.add_events() = *event;
  history.set_evaluated_epochs(evaluated_epochs_);
  history.set_next_event(next_event_);
  history.set_last_push_ms(last_push_ms_);
  return history;
}

JobHistory History::Encode(const std::string& worker, int64_t since_ms) const {
  JobHistory history = EncodeJob(since_ms);
  const auto found = workers_.find(worker);
  if (found != workers_.end()) *history.add_workers() = found->second.Encode(worker, since_ms);
  return history;
}

JobHistory History::EncodeAll() const {
  JobHistory history = EncodeJob(0);
  for (const auto& [name, track] : workers_) *history.add_workers() = track.Encode(name, 0);
  return history;
}

absl::Status History::Restore(const JobHistory& encoded) {
  if (job_id_ != 0 && encoded.job_id() != 0 && encoded.job_id() != job_id_) {
    return absl::FailedPreconditionError(
        absl::StrCat("it is of job ", absl::Hex(encoded.job_id()), ", not of job ", absl::Hex(job_id_)));
  }
  History restored(job_id_, limits_);
  absl::Status status = restored.job_.Restore(encoded.job());
  status.Update(restored.evaluations_.Restore(encoded.evaluations()));
  for (const HistoryTrack& worker : encoded.workers()) {
    Track* track = restored.TrackOf(worker.name());
    if (track != nullptr) status.Update(track->Restore(worker));
  }
  if (!status.ok()) return status;
  for (const HistoryEvent& event : encoded.events()) {
    restored.next_event_ = std::max(restored.next_event_, event.number());
    restored.AddEvent(event);
  }
  job_ = std::move(restored.job_);
  evaluations_ = std::move(restored.evaluations_);
  workers_ = std::move(restored.workers_);
  events_ = std::move(restored.events_);
  next_event_ = std::max(restored.next_event_, encoded.next_event());
  model_ = ClippedText(encoded.model(), kNameBytes);
  evaluated_epochs_ = encoded.evaluated_epochs();
  last_push_ms_ = encoded.last_push_ms();
  latest_ms_ = std::max({job_.last_ms(), evaluations_.last_ms(), last_push_ms_});
  for (const auto& [name, track] : workers_) latest_ms_ = std::max(latest_ms_, track.last_ms());
  for (const HistoryEvent& event : encoded.events()) latest_ms_ = std::max(latest_ms_, event.unix_ms());
  return absl::OkStatus();
}

size_t History::bytes() const {
  size_t bytes = sizeof(History) + job_.bytes_max() + evaluations_.bytes_max();
  for (const auto& [name, track] : workers_) bytes += track.bytes_max() + 2 * kNameBytes;
  for (const auto& [kind, of_kind] : events_)
    bytes += of_kind.size() * (sizeof(HistoryEvent) + kNameBytes + limits_.text_bytes);
  return bytes;
}

}  // namespace recon
