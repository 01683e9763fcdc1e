#include "server/durability/recovery.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace recon {

bool CannotBeRead(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsPermissionDenied(status);
}

absl::StatusOr<std::optional<Manifest>> LoadNewest(const SnapshotReader& reader,
                                                   const std::function<absl::Status(const Manifest&)>& load) {
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  absl::Status failure;
  for (auto it = generations.rbegin(); it != generations.rend(); ++it) {
    absl::StatusOr<Manifest> manifest = reader.ReadManifest(*it);
    const absl::Status status = manifest.ok() ? load(*manifest) : manifest.status();
    if (status.ok()) return *std::move(manifest);
    if (absl::IsFailedPrecondition(status) || CannotBeRead(status)) return status;
    LogError("SNAPSHOT {} IS DAMAGED: {}; falling back to the one before", it->value(), status.message());
    failure = status;
  }
  if (generations.empty()) return std::nullopt;
  return absl::DataLossError(
      absl::StrCat("none of ", generations.size(), " snapshots verifies; the oldest: ", failure.message()));
}

}  // namespace recon
