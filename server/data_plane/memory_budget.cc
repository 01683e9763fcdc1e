#include "server/data_plane/memory_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/retry_hint.h"

namespace recon {
namespace {

constexpr absl::Duration kOverloadLogInterval = absl::Seconds(10);

}  // namespace

absl::Status MemoryBudget::CheckState(const std::string& model, uint64_t bytes, size_t versions) const {
  if (bytes <= memory_) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "model ", model, " needs ", bytes, " bytes with its optimizer state",
      versions == 0 ? "" : absl::StrCat(" and the ", versions, " versions that --staleness-correction keeps"),
      ", the server has ", memory_));
}

uint64_t MemoryBudget::left() const {
  const uint64_t used = state_ + workers_.size() * limits::kRepliesBytesMax;
  return memory_ - std::min(used, memory_);
}

void MemoryBudget::Admit(WorkerId worker, bool anew) {
  Account& account = workers_[worker];
  if (anew || account.number == 0) account = {next_number_++, 0};
}

uint64_t MemoryBudget::Hold(WorkerId worker, uint64_t bytes) {
  held_ += bytes;
  const auto account = workers_.find(worker);
  if (account == workers_.end()) return 0;
  account->second.held += bytes;
  return account->second.number;
}

void MemoryBudget::Release(WorkerId worker, uint64_t number, uint64_t bytes) {
  RECON_CHECK_GE(held_, bytes);
  held_ -= bytes;
  const auto account = workers_.find(worker);
  if (account == workers_.end() || account->second.number != number) return;
  RECON_CHECK_GE(account->second.held, bytes);
  account->second.held -= bytes;
}

absl::Status MemoryBudget::CheckFrame(WorkerId worker, uint64_t bytes, bool synchronous) const {
  // One worker always may send what it may send.
  const uint64_t allowed =
      std::min(frames_max_, std::max<uint64_t>(left() / 2, limits::kStreamBytesInFlightMax));
  // The first half is whoever's comes first; of the other each has a share, one frame at least, lest a fast
  // worker's pushes of synchronous steps keep out those that would let them close.
  const uint64_t share = allowed / 2 / std::max<size_t>(workers_.size(), 1);
  const auto account = workers_.find(worker);
  const uint64_t own = account == workers_.end() ? 0 : account->second.held;
  const bool fits = held_ <= allowed / 2 || (held_ <= allowed && own <= std::max(share, bytes));
  if (fits) return absl::OkStatus();
  return WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrCat(
          "bytes in flight: ", held_, ", this worker's: ", own, ", allowed are ", allowed,
          ", in its second half ", share, " a worker",
          synchronous
              ? "; a synchronous step keeps the pushes of all workers: it needs fewer workers, a codec "
                "with fewer bytes, or more memory"
              : "")),
      limits::kOverloadRetry);
}

bool MemoryBudget::MaySayOverload(absl::Time now) {
  if (now - overload_said_ < kOverloadLogInterval) return false;
  overload_said_ = now;
  return true;
}

}  // namespace recon
