#include "server/recovery/state_recovery.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/human_bytes.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "server/durability/log_format.h"
#include "server/recovery/log_replay.h"

namespace recon {

absl::Status LoadInto(ParamServer* params, const SnapshotReader& reader, const Manifest& manifest) {
  const auto layout = params->layout();
  if (layout == nullptr) {
    RECON_RETURN_IF_ERROR(params->DefineModel(manifest.model()));
  } else if (const std::string difference = ModelDifference(layout->model(), manifest.model());
             !difference.empty()) {
    return absl::DataLossError(absl::StrCat("another model: ", difference));
  }
  return params->Restore(reader, manifest);
}

absl::Status RestoreWorkersState(ParamServer* params, ObjectStore* store, Generation generation,
                                 uint64_t upload) {
  const SnapshotReader reader(store);
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, reader.ReadManifest(generation));
  return WorkersStateOf(params)->RestoreState(reader, manifest, upload);
}

absl::StatusOr<LogEnd> ReplayAndReport(FileSystem* files, const std::string& directory,
                                       const Manifest& manifest, bool synced, ParamServer* params,
                                       ControlState* control, Metrics* metrics) {
  const absl::Time start = Now();
  RECON_ASSIGN_OR_RETURN(const LogEnd end, ReplayLog(files, directory, manifest, params, control));
  if (end.records > 0) {
    LogInfo("replayed {} records of the push log ({}, to sequence {}) in {:.0f} ms", end.records,
            HumanBytes(end.bytes), end.next_sequence - 1, absl::ToDoubleMilliseconds(Now() - start));
  }
  if (end.records_lost > 0) {
    LogError(
        "THE PUSH LOG IS DAMAGED: {}; {} records behind it cannot be applied and are kept in *.damaged{}",
        end.trailing, end.records_lost,
        synced ? "" : "; a power failure can do that, too, without --durability sync");
    metrics->Counter("recon_server_log_records_lost_total", "Records of a damaged push log")
        .Increment(static_cast<double>(end.records_lost));
  } else if (!end.trailing.empty()) {
    LogWarn("the push log ends in {}: what a crash left of a push that was not acknowledged", end.trailing);
  }
  return end;
}

absl::StatusOr<bool> HasLog(FileSystem* files, const std::string& directory) {
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->List(directory));
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return FirstSequenceOf(name).ok(); });
}

absl::Status RemoveLog(FileSystem* files, const std::string& directory) {
  RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->List(directory));
  bool removed = false;
  for (const std::string& name : names) {
    if (!FirstSequenceOf(name).ok()) continue;
    RECON_RETURN_IF_ERROR(files->Remove(absl::StrCat(directory, "/", name)));
    removed = true;
  }
  return removed ? files->SyncDirectory(directory) : absl::OkStatus();
}

}  // namespace recon
