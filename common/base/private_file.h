#pragma once

#include <string>

#include "absl/status/status.h"

namespace recon {

// What a server keeps for itself: others of the machine neither read it nor lead it elsewhere. Errors name
// the path.

// Makes the directory, and what is above it, if it is not there: for its owner only. Says in the log if
// others can read one that is.
absl::Status MakePrivateDirectory(const std::string& path);

// Writes a small file anew. FailedPrecondition if a link or something that is no regular file has its name.
absl::Status WriteOwnFile(const std::string& path, const std::string& text);

}  // namespace recon
