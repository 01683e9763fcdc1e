#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/base/watched_file.h"
#include "common/rpc/revocation_list.h"

namespace recon {

// The certificates that a file says are revoked (--tls-crl). It is read again when it changes; a new one that
// is wrong changes nothing, and the log says what is wrong with it.
//
// Threads: thread-safe.
class Revocations {
 public:
  // InvalidArgument, which names the flag and the file, for one that cannot be read or is wrong.
  // One for all of a process that ask for these files, which lasts as long as the process.
  static absl::StatusOr<Revocations*> Open(const std::string& file, const std::string& ca_file);

  // Once in WatchedFile::kLook it looks at the file, and reads that and the CA's under the lock if it has
  // changed: others who ask wait for it.
  bool Has(const X509* certificate);
  // The same of any certificate of a text in PEM, such as the chain that somebody has shown. What cannot be
  // read has none.
  bool HasAnyOf(absl::string_view pem);

 private:
  Revocations(const std::string& file, std::string ca_file) : ca_file_(std::move(ca_file)), file_(file) {}
  absl::Status Look() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string ca_file_;
  Mutex mu_;
  WatchedFile file_ ABSL_GUARDED_BY(mu_);
  RevocationList list_ ABSL_GUARDED_BY(mu_);
  absl::Status looked_ ABSL_GUARDED_BY(mu_);  // What came of the last look.
};

}  // namespace recon
