#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace recon {

// What a server keeps for itself: others of the machine neither read it nor lead it elsewhere. Errors name
// the path.

// Makes the directory, and what is above it, if it is not there: for its owner only. Says in the log if
// others can read one that is.
absl::Status MakePrivateDirectory(const std::string& path);

// Writes a small file anew; `mode`: who may read a file that was not there. FailedPrecondition if a link or
// something that is no regular file has its name.
absl::Status WriteOwnFile(const std::string& path, const std::string& text, unsigned mode = 0644);

// What a file has that is to be a secret. NotFound if there is none; FailedPrecondition for something that is
// no regular file, has more than `bytes_max` bytes, or that others of the machine can read. What it names, be
// it through a link, is the caller's choice.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path, size_t bytes_max);

// What a small file has that this process' user owns and others cannot write; what kind of file it is, is
// known before it is opened for reading. Errors as ReadSecretFile()'s.
absl::StatusOr<std::string> ReadOwnFile(const std::string& path, size_t bytes_max);

}  // namespace recon
