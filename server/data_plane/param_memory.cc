// Of ParamServer: what the state and frames under way may take of the memory.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/retry_hint.h"
#include "common/tensor/page.h"
#include "server/data_plane/param_operation.h"
#include "server/data_plane/param_server.h"

namespace recon {
namespace {

constexpr absl::Duration kOverloadLogInterval = absl::Seconds(10);

}  // namespace

uint64_t ParamServer::PlanesOf(const ApplyRules& rules) const {
  return 1 + static_cast<uint64_t>(state_planes()) + rules.correction.versions;
}

absl::Status ParamServer::CheckMemory(uint64_t pages, const ApplyRules& rules,
                                      const std::string& model) const {
  const uint64_t bytes = pages * PlanesOf(rules) * kPageBytes;
  if (bytes <= options_.memory_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "model ", model, " needs ", bytes, " bytes with its optimizer state",
      rules.correction.versions == 0 ? ""
                                     : absl::StrCat(" and the ", rules.correction.versions,
                                                    " versions that --staleness-correction keeps"),
      ", the server has ", options_.memory_bytes));
}

uint64_t ParamServer::MemoryLeft() const {
  const uint64_t taken =
      owned_pages_ * PlanesOf(*rules_) * kPageBytes + sessions_.size() * limits::kRepliesBytesMax;
  return options_.memory_bytes - std::min(taken, options_.memory_bytes);
}

uint64_t ParamServer::memory_left() const {
  MutexLock lock(&mu_);
  return MemoryLeft();
}

absl::Status ParamServer::CheckBytesInFlight(const Session& sender, uint64_t frame) const {
  // One worker always may send what it may send.
  const uint64_t allowed = std::min(options_.bytes_in_flight_max,
                                    std::max<uint64_t>(MemoryLeft() / 2, limits::kStreamBytesInFlightMax));
  // The first half is whoever's comes first; of the other each has a share, one frame at least, lest a fast
  // worker's pushes of synchronous steps keep out those that would let them close.
  const uint64_t share = allowed / 2 / std::max<size_t>(sessions_.size(), 1);
  const bool fits = bytes_in_flight_ <= allowed / 2 ||
                    (bytes_in_flight_ <= allowed && sender.bytes_in_flight <= std::max(share, frame));
  if (fits) return absl::OkStatus();
  return WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrCat(
          "bytes in flight: ", bytes_in_flight_, ", this worker's: ", sender.bytes_in_flight,
          ", allowed are ", allowed, ", in its second half ", share, " a worker",
          rules_->bound == 0 ? "; a synchronous step keeps the pushes of all workers: it needs fewer "
                               "workers, a codec with fewer bytes, or more memory"
                             : "")),
      limits::kOverloadRetry);
}

// Now and then: there may be thousands of them a second.
void ParamServer::SayOverload(const absl::Status& status, absl::Time now) {
  {
    MutexLock lock(&mu_);
    if (now - overload_said_ < kOverloadLogInterval) return;
    overload_said_ = now;
  }
  LogWarn("workers are told to wait: {}", status.message());
}

}  // namespace recon
