#pragma once

#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "common/snapshot/snapshot_reader.h"
#include "proto/manifest.pb.h"

namespace recon {

// A store that does not answer, or not to us, may well hold a good snapshot: to take an older one instead
// would lose work.
bool CannotBeRead(const absl::Status& status);

// Finds the newest snapshot that loads. `load` is called with each manifest that verifies, newest first,
// until it returns OK; whatever is skipped is said in the log. Nothing if there is no snapshot at all;
// DataLoss if there are some and none loads. FailedPrecondition from `load` ends the search: that is a
// wrong flag, not damage; and so does what CannotBeRead().
absl::StatusOr<std::optional<Manifest>> LoadNewest(const SnapshotReader& reader,
                                                   const std::function<absl::Status(const Manifest&)>& load);

}  // namespace recon
