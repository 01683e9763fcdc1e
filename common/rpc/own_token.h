#pragma once

#include <string>

#include "absl/base/thread_annotations.h"
#include "common/base/mutex.h"
#include "common/rpc/caller.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace recon {

// After a call that was denied: a token that the head keeps for processes of its user, if the head is on this
// machine, says where that is, and we own the file; else nothing. Reads two small files.
//
// Another process on the head's port is told nothing: the address beside the token must be the port that was
// called.
std::string OwnTokenOf(const grpc::ClientContext& context);

// How a client says who it is to a head, call by call. Who was given no token begins with none and says that
// it looks for one; where that is denied, it takes the head's own (OwnTokenOf) and keeps it. Thread-safe.
class Introduction {
 public:
  explicit Introduction(Caller caller);

  // Returns the token that the call shows then; it may be empty.
  std::string AddTo(grpc::ClientContext* context) const;
  // After a call that has shown `shown` and ended with `status`: whether it was denied, and another token is
  // there now to try again with. Reads two small files.
  bool FindsAnother(const std::string& shown, const grpc::Status& status, const grpc::ClientContext& context);

 private:
  const bool looks_;
  mutable Mutex mu_;
  Caller caller_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
