#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace recon {

// What a connection has sent and the server has neither taken nor answered. Not thread-safe.
class RequestsInFlight {
 public:
  explicit RequestsInFlight(size_t bytes_max) : bytes_max_(bytes_max) {}

  // Whether a request of this charge (RequestCharge()) may be sent now; a single one always may.
  bool MayAdd(size_t charge) const { return calls_.empty() || bytes_ + charge <= bytes_max_; }
  void Add(uint64_t call, size_t charge) {
    calls_[call] = charge;
    bytes_ += charge;
  }
  // Nothing if it is not among them.
  void Remove(uint64_t call) {
    const auto found = calls_.find(call);
    if (found == calls_.end()) return;
    bytes_ -= found->second;
    calls_.erase(found);
  }

 private:
  size_t bytes_max_;
  absl::flat_hash_map<uint64_t, size_t> calls_;
  size_t bytes_ = 0;
};

}  // namespace recon
