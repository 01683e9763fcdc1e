#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/lane.h"
#include "common/base/mutex.h"
#include "common/storage/file_system.h"
#include "proto/control.pb.h"
#include "server/history/event_stream.h"
#include "server/history/history.h"

namespace recon {

// Keeps the job's history up to date, in memory and in a file of the data directory, from statuses that it is
// given. A file that is missing, damaged or of another job costs the history and a line in the log; one that
// cannot be written costs what came since, and a line.
//
// Threads: thread-safe. What is noted is taken up, encoded and written on a thread of the keeper's own:
// nobody who calls waits for the disk but the constructor, which reads the file. Shutdown: the destructor
// writes the file, if anything was noted.
class HistoryKeeper {
 public:
  // So many requests wait on the keeper's thread at most.
  static constexpr int kRequestsMax = 64;

  // `files` must outlive the keeper.
  HistoryKeeper(const std::string& data_directory, uint64_t job_id, FileSystem* files);
  ~HistoryKeeper();

  // From now on what comes to the history goes to an event file for TensorBoard, too, in `directory`; a
  // failure to write it ends that, with a line in the log. Before the first Note().
  void WriteEvents(const std::string& directory);

  // Whether a status is wanted now: each second, and twice a second while somebody looks.
  bool Due(absl::Time now);
  void Note(StatusReply status, absl::Time now, absl::Time wall);

  // The last status; null before the first.
  std::shared_ptr<const StatusReply> status() const;
  // When that was noted, by the clock of `now`.
  absl::Time status_at() const;
  // Somebody looks at the job: statuses are wanted more often for a while.
  void NoteWatched(absl::Time now);

  JobHistory Encode(const std::string& worker, int64_t since_ms) const;
  // The same on the keeper's thread, for those that must not wait. ResourceExhausted, at once, while
  // kRequestsMax requests wait.
  void EncodeLater(const HistoryRequest& request, std::function<void(absl::StatusOr<HistoryReply>)> done);
  // Calls `read` with the history.
  void Read(const std::function<void(const History&)>& read) const;

 private:
  void TakeUp(const std::shared_ptr<const StatusReply>& status, absl::Time now, absl::Time wall);
  void Save(absl::Time now);
  // `all`: also what waits for its interval.
  void AppendEvents(absl::Time wall, bool all);

  const std::string data_directory_;
  FileSystem* const files_;

  mutable Mutex mu_;
  History history_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const StatusReply> status_ ABSL_GUARDED_BY(mu_);
  absl::Time status_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Time due_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  absl::Time watched_until_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();

  // Lane only, or in constructor and destructor.
  absl::Time save_at_ = absl::InfinitePast();         // The latest series,
  absl::Time save_events_at_ = absl::InfinitePast();  // and as soon as something happens.
  bool said_unwritten_ = false;
  std::unique_ptr<EventStream> events_;  // Null: no event file.
  absl::Time taken_up_wall_ = absl::InfinitePast();
  uint64_t saved_event_ = 0;

  std::atomic<int> waiting_{0};   // Statuses that are not taken up.
  std::atomic<int> requests_{0};  // That wait.
  std::unique_ptr<Lane> lane_;
};

}  // namespace recon
