#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/snapshot/control_state.h"
#include "common/storage/file_system.h"
#include "proto/manifest.pb.h"
#include "server/data_plane/param_server.h"
#include "server/durability/log_reader.h"

namespace recon {

// First record of the push log that a snapshot needs beside it.
uint64_t FirstRecordFor(const Manifest& manifest);

// Applies records to a restored state: those of pushes to `params`, others to `control`. Both must outlive
// it.
class Replayer : public LogVisitor {
 public:
  // Rules of another job or history than the manifest's are refused; records after `last` end the reading
  // with Cancelled.
  Replayer(const Manifest& manifest, uint64_t last, ParamServer* params, ControlState* control)
      : job_id_(manifest.job_id()),
        history_(manifest.history()),
        last_(last),
        params_(params),
        control_(control),
        next_progress_(Now() + kProgressInterval) {}

  absl::Status OnRules(const ApplyRules& rules) override;
  absl::Status OnRecord(LogRecordKind kind, uint64_t sequence, const ByteChain& payload) override;

 private:
  // Whoever waits for a server sees how far it is.
  static constexpr absl::Duration kProgressInterval = absl::Seconds(1);

  const uint64_t job_id_;
  const uint64_t history_;
  const uint64_t last_;
  uint64_t rules_history_ = 0;  // Of the records that come.
  ParamServer* const params_;
  ControlState* const control_;
  uint64_t bytes_ = 0;
  absl::Time next_progress_;
};

// Brings `params` and `control`, restored from `manifest`, up to date by the push log of a directory.
// Segments that cannot be used are set aside (LOG.md). Errors are those of files and of records that are not
// this model's.
absl::StatusOr<LogEnd> ReplayLog(FileSystem* files, const std::string& directory, const Manifest& manifest,
                                 ParamServer* params, ControlState* control);

// Whether a snapshot must be published before a new segment's records go on from the replayed state: with
// `sync` because what was replayed may never have reached the disk, or because of a gap between the log's end
// and the state, beyond which nobody could read on.
bool NeedsSnapshotFirst(const LogEnd& replayed, bool sync, uint64_t sequence);

}  // namespace recon
