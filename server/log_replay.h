#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/storage/file_system.h"
#include "proto/manifest.pb.h"
#include "server/durability/log_reader.h"
#include "server/param_server.h"

namespace recon {

// First record of the push log that a snapshot needs beside it.
uint64_t FirstRecordFor(const Manifest& manifest);

// Brings `params`, restored from `manifest`, up to date by the push log of a directory. Segments that cannot
// be used are set aside (LOG.md). Errors are those of files and of records that are not this model's.
absl::StatusOr<LogEnd> ReplayLog(FileSystem* files, const std::string& directory, const Manifest& manifest,
                                 ParamServer* params);

// Whether a snapshot must be published before a new segment's records go on from the replayed state: with
// `sync` because what was replayed may never have reached the disk, or because of a gap between the log's end
// and the state, beyond which nobody could read on.
bool NeedsSnapshotFirst(const LogEnd& replayed, bool sync, uint64_t sequence);

}  // namespace recon
