#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace recon {

// The few operations on files that durable state needs, so that tests can put a file system in their place
// that fails, tears and forgets.
//
// Threads: thread-safe; a file is used by one thread at a time.
// Errors: as errno_status.h has them, and DataLoss for a file that is shorter than what is asked of it. What
// may pass was tried again for RECON_STORE_PATIENCE when Unavailable is returned, but for Append() and
// Sync(): after a failed one the kernel may have dropped the data and cleared the error.
class FileSystem {
 public:
  // Closed when destroyed.
  class File {
   public:
    virtual ~File() = default;
    // Writes all pieces, one after the other, behind what was written before.
    virtual absl::Status Append(absl::Span<const absl::string_view> pieces) = 0;
    // Makes the file `bytes` long, of zeros that the next Append() calls overwrite from where they are.
    virtual absl::Status Allocate(uint64_t bytes) = 0;
    // A hint: what was appended may go to the disk now, so that Sync() finds less to do.
    virtual void StartWriting() {}
    // What was appended survives the machine when it returns OK; the name does after SyncDirectory().
    virtual absl::Status Sync() = 0;
  };

  virtual ~FileSystem() = default;

  // A file for writing, empty. FailedPrecondition for what is there and no regular file, as of Size() and
  // ReadInto(): nothing waits for a pipe's other end.
  virtual absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) = 0;
  virtual absl::StatusOr<uint64_t> Size(const std::string& path) = 0;
  // How long ago a file was written, by the clock of its file system, which may be another machine's: a file
  // is made beside it for a moment. By this machine's clock where none can be made.
  virtual absl::StatusOr<absl::Duration> Age(const std::string& path) = 0;
  // Exactly `size` bytes from `offset`; DataLoss if the file is shorter.
  absl::StatusOr<std::string> Read(const std::string& path, uint64_t offset, uint64_t size);
  // The same, to `out`; without a copy where `out` and `offset` are multiples of AlignedBuffer::kAlign.
  virtual absl::Status ReadInto(const std::string& path, uint64_t offset, uint64_t size, char* out) = 0;

  // Replaces what is at `to`.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // AlreadyExists if there is something at `to`. Where the file system has no hard links, `from` is gone
  // then.
  virtual absl::Status Link(const std::string& from, const std::string& to) = 0;
  // OK if the file is gone, whether or not it was there.
  virtual absl::Status Remove(const std::string& path) = 0;
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // What a process without privileges may still write to the file system of an existing directory.
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& directory) = 0;
  // With those above it; the names survive the machine.
  virtual absl::Status CreateDirectories(const std::string& path) = 0;
  // False if nothing is there, or something else than a directory.
  virtual absl::StatusOr<bool> IsDirectory(const std::string& path) = 0;
  // Paths of all below a directory that are no directories, relative to it, sorted; none if it is not there.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory) = 0;

  // From now on, what may pass is tried again for so long at most.
  virtual void CapPatience(absl::Duration) {}

  // The one of the machine; lives as long as the process.
  static FileSystem* Local();
};

}  // namespace recon
