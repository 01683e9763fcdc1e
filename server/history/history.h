#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "proto/control.pb.h"
#include "proto/history.pb.h"
#include "server/history/progress_rates.h"
#include "server/history/track.h"

namespace recon {

// What a job has gone through, made from the statuses that its server tells: series of the job and of each
// worker, evaluations, and events. All of it is bounded: points are thinned (Track), of each kind of event
// the newest stay, as do the workers that are there and those that left last.
//
// Series of the job: loss (the mean of its workers), samples_per_second, pushes_per_second, staleness
// (updates, mean of the workers), push_bytes_per_second and pull_bytes_per_second (payloads),
// push_latency_ms, computing, waiting and link (shares of the workers' steps, see WorkerRates), workers (that
// are alive), data_epochs, log_bytes, updates (of the parameters). Of evaluations: accuracy, loss. Of a
// worker: those of the job that are about one.
//
// Kinds of events: started, running, draining, finished; joined, restarted, returned, suspected, heard, left,
// evicted; server; policy, codec; snapshot, snapshot_failed; rollback, diverged; standing, moving; clock.
//
// Pure: no clock, `unix_ms` is the time of day; not thread-safe. That may be set back, also between two
// processes: what is later than the present then is moved to before it, by as much.
class History {
 public:
  struct Limits {
    Track::Shape job{128, 15}, evaluations{256, 4}, worker{16, 16};
    // The job, a point each second, takes 0.4 MB at most, and is whole for 48 days; then its oldest level
    // halves. A worker, a point each two seconds, takes 38 kB.
    int64_t job_interval_ms = 950, worker_interval_ms = 1950;
    size_t workers_max = 1024;  // With series; others are counted in the job's.
    size_t departed_max = 128;  // Of them, workers that are gone.
    size_t events_of_kind = 512;
    size_t text_bytes = 512;
  };

  explicit History(uint64_t job_id) : History(job_id, Limits()) {}
  History(uint64_t job_id, const Limits& limits);

  // What the server says now; at any interval.
  void Note(std::shared_ptr<const StatusReply> now, int64_t unix_ms);

  // What has been noted, of the job and (`worker` not empty) of one worker; points and events later than
  // `since_ms`.
  JobHistory Encode(const std::string& worker, int64_t since_ms) const;
  // All of it, for Restore().
  JobHistory EncodeAll() const;
  // Takes up EncodeAll() of before a restart. DataLoss, and nothing changes, if it does not fit together;
  // FailedPrecondition if it is of another job.
  absl::Status Restore(const JobHistory& encoded);

  const Track& job() const { return job_; }
  const Track& evaluations() const { return evaluations_; }
  // Of a worker's last reports; null if it is not known.
  const WorkerRates* RatesOf(const std::string& name) const { return rates_.Find(name); }
  // When the job's count of pushes was last seen to grow; 0 if never.
  int64_t last_push_ms() const { return last_push_ms_; }
  // Grows with each event.
  uint64_t next_event() const { return next_event_; }
  // Of memory, at most, as it stands: with the workers and events there are.
  size_t bytes() const;

 private:
  void SetBack(int64_t unix_ms);
  // As Track::MoveLater(): none to before an older one.
  void MoveEventsLater(int64_t limit_ms, int64_t by_ms);
  void NoteEvents(const StatusReply& status, int64_t unix_ms);
  void NoteJob(const StatusReply& status, int64_t unix_ms);
  void NoteWorkers(const StatusReply& status, int64_t unix_ms);
  void NoteEvaluations(const StatusReply& status, int64_t unix_ms);
  // Whether it happened once, and a server that has been restarted only sees it again.
  bool Told(const HistoryEvent& event) const;
  void AddEvent(HistoryEvent event);
  Track* TrackOf(const std::string& worker);
  void DropDeparted(const StatusReply& status);
  JobHistory EncodeJob(int64_t since_ms) const;

  const Limits limits_;
  const uint64_t job_id_;
  std::string model_;
  Track job_;
  Track evaluations_;
  uint32_t evaluated_epochs_ = 0;
  std::map<std::string, Track> workers_;
  std::map<std::string, std::deque<HistoryEvent>> events_;  // By kind, oldest first.
  uint64_t next_event_ = 1;
  ProgressRates rates_;
  int64_t last_push_ms_ = 0;
  // Of this process, once there was one.
  std::shared_ptr<const StatusReply> before_;
  int64_t latest_ms_ = 0;  // Nothing in it is later.
  int64_t job_at_ms_ = 0, workers_at_ms_ = 0;
  uint64_t pushes_at_sample_ = 0;
};

}  // namespace recon
