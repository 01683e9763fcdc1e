#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"

namespace rocksdb {
class Env;
class Status;
}  // namespace rocksdb

namespace recon {

// What a status of RocksDB means; `what` begins the message. OK for OK; DataLoss for corruption and for a
// file that others name and that is not there; ResourceExhausted for a full disk; PermissionDenied;
// FailedPrecondition for a database that is open elsewhere; Unavailable for every other I/O error, which may
// pass.
absl::Status FromRocks(const rocksdb::Status& status, const std::string& what);

// FailedPrecondition for something in the directory that is neither a file nor a directory: RocksDB would
// wait for a pipe's other end. OK where there is no directory yet.
absl::Status CheckControlDbFiles(const std::string& directory);

// The files of a control database, for rocksdb::Options::env; must outlive the database.
//
// A call that fails is tried again for RECON_STORE_PATIENCE when the error may pass. After that it ends the
// process with 1, after a line that names the file: RocksDB takes no write afterwards, and Debian's build of
// 7.8 aborts when it closes its files then. A file that is not there is no failure. Nothing that was
// acknowledged is lost: what is on the disk and in the push log is what was acknowledged. Threads:
// thread-safe.
std::unique_ptr<rocksdb::Env> MakeControlDbEnv();

}  // namespace recon
