#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/lane.h"
#include "common/base/mutex.h"
#include "common/base/owned_fd.h"

namespace recon {

// Who did what to the job, and who was denied it: a line of JSON each, in a file that only its owner reads.
// At 8 MiB the file is renamed to <path>.1, in place of the one before.
//
// Threads: thread-safe; Note() waits for no disk. What cannot be written is said once in the log and counted.
class AuditLog {
 public:
  struct Entry {
    absl::Time time;
    std::string call;    // As the service names it.
    std::string from;    // The caller's address.
    std::string who;     // What it has shown: "certificate CN=..., OU=...", "token", "nothing".
    std::string roles;   // That it has.
    std::string detail;  // What it asked for; may be empty.
    std::string result;  // "ok", or why it was refused.
  };

  // Opens the file, or makes it. FailedPrecondition if its name is that of a link or no regular file.
  static absl::StatusOr<std::unique_ptr<AuditLog>> Open(const std::string& path);

  // Its texts are clipped to a kilobyte each. Beyond limits::kAuditLinesMax that wait to be written it is
  // dropped; the next line that is written says how many were.
  void Note(Entry entry);
  // Everything noted so far is written.
  void Flush();

 private:
  explicit AuditLog(std::string path) : path_(std::move(path)), lane_("audit") {}
  absl::Status Reopen();
  void Write(const Entry& entry, uint64_t dropped);

  const std::string path_;

  Mutex mu_;
  uint64_t waiting_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;

  // Lane only.
  OwnedFd fd_;
  uint64_t bytes_ = 0;
  bool failed_ = false;
  Lane lane_;  // Last: stops before what its tasks use is destroyed.
};

}  // namespace recon
