#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "server/durability/push_log.h"

namespace recon {

// What workers are told when the log has failed: they try again until the server has been started anew.
absl::Status LogFailed(const absl::Status& status);

// The push log of a server, where it has one, and what snapshots have to do with it: pushes are taken only
// once there is a snapshot that the log goes on from, and wait while the log is full until a snapshot has
// made room.
//
// Threads: thread-safe, but for Set(), which comes before frames do. Its lock is a leaf.
class JobLog {
 public:
  // From now on records go through `log`.
  void Set(std::unique_ptr<PushLog> log) { log_ = std::move(log); }
  // Waits for what was appended, and for callbacks, which may still ask the log something.
  void Close() {
    if (on()) log_->Stop();
    log_.reset();
  }
  // Null without a log.
  PushLog* get() const { return log_.get(); }
  bool on() const { return log_ != nullptr; }

  // Not OK once the log has failed: nothing more is acknowledged, and the process should be started anew.
  absl::Status status() const { return on() ? log_->status() : absl::OkStatus(); }
  // Of records, since it was set.
  uint64_t bytes_written() const { return on() ? log_->bytes_written() : 0; }
  // What it takes on the disk, and may take.
  uint64_t disk_bytes() const { return on() ? log_->disk_bytes() : 0; }
  uint64_t budget_bytes() const { return on() ? log_->budget_bytes() : 0; }
  // Pushes are told to wait until a snapshot has made room.
  bool full() const { return on() && log_->full(); }
  // Whether a push may come: ResourceExhausted while it is full, Unavailable until there is a snapshot.
  absl::Status CheckRoom() const;
  absl::Status CheckSnapshot() const;

  // A snapshot is published that needs records from `first_needed` on. Blocks on the disk.
  void NoteSnapshot(uint64_t first_needed);
  // A snapshot has to come, whatever was noted, before pushes are taken.
  void AwaitSnapshot() { has_snapshot_ = false; }
  // Training may have begun: initial values come too late.
  bool has_snapshot() const { return has_snapshot_; }
  // Pushes wait for one.
  bool awaits_snapshot() const { return on() && !has_snapshot_; }
  // A snapshot should come early, so that records can go: the log has grown by a quarter of its budget since
  // the last one, or is full.
  bool wants_snapshot() const;
  // Removes what only a snapshot before the newest would need. Blocks on the disk.
  void TrimToNewest();

 private:
  void Trim(uint64_t first_needed);

  std::unique_ptr<PushLog> log_;
  std::atomic<bool> has_snapshot_{false};
  mutable Mutex mu_;
  uint64_t first_needed_ ABSL_GUARDED_BY(mu_) = 0;  // By the newest snapshot.
  uint64_t bytes_at_snapshot_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recon
