#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace recon {

// One word for a shell, whatever is in it.
std::string Quoted(const std::string& word);

// What a shell's command prints; Internal if it fails.
absl::StatusOr<std::string> OutputOf(const std::string& command);

// A line with one number; Internal if it is none.
absl::StatusOr<double> ParseSeconds(const std::string& line);

}  // namespace recon
