#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/owned_fd.h"

namespace recon {

// Files of which a user, or whoever else may write to a directory, has chosen the path. Only a regular file
// is opened, perhaps through links: opening a pipe waits for its other end, and some devices never end.
//
// Threads: all functions are thread-safe. They block on the disk and on nothing else.

// What OpenRegularFile() has found.
struct OpenedFile {
  OwnedFd fd;         // -1 for none.
  int error = 0;      // Why there is none: an errno, or 0 where `other` says what is there.
  std::string other;  // "a pipe", "a directory", "a socket" or "a device".

  bool ok() const { return fd.get() >= 0; }
  // OK; "PATH is a pipe, no regular file" with InvalidArgument; the errno's code and text otherwise.
  absl::Status status(const std::string& path) const;
};

// As open(), with O_CLOEXEC. Returns at once for whatever there is that is no regular file.
OpenedFile OpenRegularFile(const std::string& path, int flags, unsigned mode = 0644);

// All that a file has. InvalidArgument for what is no regular file, and for more than `bytes_max` bytes;
// NotFound, or the error, where it cannot be read.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t bytes_max);

// Whether `path` is a regular file, without opening it. Errors as OpenedFile::status()'s.
absl::Status CheckRegularFile(const std::string& path);

// Whether `path` is a directory, perhaps through links. InvalidArgument, "PATH is a pipe, no directory", for
// anything else that is there; NotFound, or the error, where it cannot be looked at.
absl::Status CheckDirectory(const std::string& path);

// What stat() has found, in words: "a file", or as OpenedFile::other has it.
const char* FileKind(mode_t mode);

// Whether `path` can be given to a file that is made elsewhere and then renamed to it: there is nothing yet,
// or a regular file that is replaced. Errors as CheckRegularFile()'s, without NotFound.
absl::Status CheckReplaceable(const std::string& path);

}  // namespace recon
