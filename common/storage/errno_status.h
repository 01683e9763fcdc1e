#pragma once

#include <string>

#include "absl/status/status.h"

namespace recon {

// What the number of a failed system call means for whoever holds durable state. All of storage uses this
// one table (errno_status.cc).
//
// NotFound           nothing is there.
// AlreadyExists      something is there.
// PermissionDenied   the process may not; trying again does not help.
// ResourceExhausted  a disk, a quota or a file-size limit is full.
// Unavailable        it may pass: try again with patience, then give up. An I/O error is one of these: a disk
//                    or a network file system may answer the next time.
// FailedPrecondition the call cannot work there, however often it is tried: not a directory, a loop of links,
//                    a name that is too long, a file system that cannot do this.
//
// Never DataLoss: that something is damaged is said by a checksum, a hash or a length, and by nothing else.
absl::StatusCode CodeOfErrno(int error);

// The status for `error`; the message is "`what`: text of the error".
absl::Status ErrnoStatus(int error, const std::string& what);

}  // namespace recon
