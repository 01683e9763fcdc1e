#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace recon {

// Tells when a file is another than the one that was read last, by its inode, size, mode and time.
//
// Threads: none of its own; the caller serializes.
class WatchedFile {
 public:
  // Between two looks.
  static constexpr absl::Duration kLook = absl::Seconds(1);

  explicit WatchedFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // Whether it is to be read: it was never, or is another one now. Looks once in kLook, and says no
  // meanwhile. NotFound if it cannot be found.
  absl::StatusOr<bool> Changed(absl::Time now);
  // What Changed() has seen last has been read.
  void NoteRead() { read_ = seen_; }
  bool was_read() const { return !read_.empty(); }

 private:
  std::string path_;
  absl::Time look_at_ = absl::InfinitePast();
  std::string seen_;  // What tells one state of the file from another.
  std::string read_;
};

}  // namespace recon
