#pragma once

#include <string>

#include "absl/status/status.h"

namespace recon {

// Whether `path` is, perhaps through links, a file that can be read to its end: opening a pipe waits for its
// writer, and some devices never end. InvalidArgument that says what it is instead; NotFound, or the error,
// where that cannot be known.
absl::Status CheckRegularFile(const std::string& path);

}  // namespace recon
