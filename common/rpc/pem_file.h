#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace recon {

// The text of a PEM file. Thread-safe; it blocks on the disk. InvalidArgument, which names `flag`, for one
// that cannot be read, has more than 1 MiB, or is none.
absl::StatusOr<std::string> ReadPemFile(const std::string& flag, const std::string& path);

}  // namespace recon
