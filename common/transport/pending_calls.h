#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/base/mutex.h"
#include "common/transport/transport.h"

namespace recon {

// Calls of a transport that wait for their replies. Thread-safe; callbacks run without its lock.
class PendingCalls {
 public:
  // A new call over the connection numbered `connection`.
  uint64_t Add(uint64_t connection, Transport::Done done);
  // The call goes over that connection now. False if it has ended.
  bool Assign(uint64_t call, uint64_t connection);
  // Ends a call; nothing if it has ended.
  void Finish(uint64_t call, absl::StatusOr<ByteChain> reply);
  // Takes a call back, so that its callback is not called; nothing if it has ended.
  std::optional<Transport::Done> Take(uint64_t call);
  bool Has(uint64_t call) const;
  // Ends all calls of a connection; which they were.
  std::vector<uint64_t> FailAll(uint64_t connection, const absl::Status& why);

 private:
  struct Pending {
    uint64_t connection = 0;
    Transport::Done done;
  };

  mutable Mutex mu_;
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, Pending> calls_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
