#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "common/base/byte_chain.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/mutex.h"
#include "common/base/pool_allocator.h"
#include "common/storage/file_system.h"
#include "server/durability/log_format.h"

namespace recon {

// Writes the push log (LOG.md): records in the order they were appended, many at a time.
// A segment's file grows in extents, ahead of what is written.
//
// Threads: Append(), Barrier(), BeginSegment() and Trim() on any; what is to come in a certain order needs
// the caller's lock. `done` callbacks run on the log's own thread, one after the other, in the order of their
// calls; they must not block on anything that waits for the log. Shutdown: the destructor writes what was
// appended, runs the callbacks and joins.
class PushLog {
 public:
  struct Options {
    std::string directory;
    bool sync = false;  // Records are on the disk, not only written, before their callbacks run.
    uint64_t segment_bytes = limits::kLogSegmentBytes;
    // What all segments together may take on the disk; see full().
    uint64_t budget_bytes = UINT64_MAX;
  };
  // OK: the record is written, and everything before it. Otherwise nothing more will be: the log has failed.
  using Done = absl::AnyInvocable<void(const absl::Status& status)>;

  // Begins a segment for records from `next_sequence`, applied by `rules`. `files` must outlive the log.
  static absl::StatusOr<std::unique_ptr<PushLog>> Open(const Options& options, FileSystem* files,
                                                       const ApplyRules& rules, uint64_t next_sequence);
  ~PushLog();

  // Writes what was appended, calls it back, and ends. Nothing may be appended any more. The destructor does
  // it, too; whoever is called back and asks the log something stops it first.
  void Stop();
  // Appends a record; its sequence is the next one.
  void Append(LogRecordKind kind, ByteChain payload, Done done);
  // Runs `done` when everything before is written.
  void Barrier(Done done);
  // What is appended from now on is applied by other rules: it comes into a segment of its own. Waits until
  // everything before is written and that segment has begun; nothing may be appended meanwhile.
  absl::Status BeginSegment(const ApplyRules& rules);
  // Removes segments that only have records before `first_needed`.
  absl::Status Trim(uint64_t first_needed);

  // In a callback: the sequence of its record; in a barrier's, of the last record before it.
  uint64_t called_back() const { return called_back_; }
  // Why it has failed; OK while it has not.
  absl::Status status() const;
  // Of records, since Open().
  uint64_t bytes_written() const { return bytes_written_.load(); }
  // What all segments take on the disk.
  uint64_t disk_bytes() const { return disk_bytes_.load(); }
  uint64_t budget_bytes() const { return options_.budget_bytes; }
  // All but an eighth of the budget is used, or the disk is nearly full: a snapshot and Trim() have to make
  // room before much more is appended. What is under way still fits.
  bool full() const { return disk_bytes() > options_.budget_bytes / 8 * 7 || short_of_room(); }
  // Its disk nearly is.
  bool short_of_room() const { return short_of_room_.load(); }
  // Looks again whether the disk has room; for a log that nothing is appended to.
  void LookForRoom();

 private:
  struct Entry {
    bool barrier = false;
    std::string new_head;  // Not empty: a segment begins with it.
    LogRecordKind kind = LogRecordKind::kFrame;
    ByteChain payload;
    Done done;
  };
  struct Segment {
    std::unique_ptr<FileSystem::File> file;
    uint64_t bytes = 0;
    uint64_t allocated = 0;  // On the disk, from the file's begin.
  };

  PushLog(const Options& options, FileSystem* files, const ApplyRules& rules, uint64_t next_sequence);
  void Run();
  void TakeBatch();
  absl::Status OpenSegment(uint64_t bytes_needed);
  // The current segment has room on the disk for `bytes` and, where possible, for one extent more.
  absl::Status Reserve(uint64_t bytes);
  absl::Status Allocate(uint64_t bytes);
  uint64_t extent_bytes() const;
  absl::Status Write();

  // Set in the constructor.
  const Options options_;
  FileSystem* const files_;

  // The log's thread only, once it runs.
  std::string segment_head_;
  Segment segment_;
  uint64_t next_sequence_;
  uint64_t called_back_;
  // Of the batch that is being written; their memory is used again.
  std::vector<Entry> batch_;
  std::string heads_;
  std::vector<absl::string_view> pieces_;
  StreamingHash64 hash_;

  std::atomic<uint64_t> bytes_written_{0};
  std::atomic<uint64_t> disk_bytes_{0};
  std::atomic<bool> short_of_room_{false};
  mutable Mutex mu_;
  PooledDeque<Entry> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;
};

// What the files in a directory take, together; 0 if it is not there.
absl::StatusOr<uint64_t> BytesBelow(FileSystem* files, const std::string& directory);

}  // namespace recon
