#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace recon {

// How long the caller should wait before it tries again, carried by a status (its payload). It crosses the
// network with the reply.
absl::Status WithRetryAfter(absl::Status status, absl::Duration wait);
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

}  // namespace recon
