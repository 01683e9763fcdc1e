#include "common/storage/patience.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/backoff.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/sleep.h"

namespace recon {

absl::StatusOr<absl::Duration> PatienceFromEnvironment() {
  constexpr char kName[] = "RECON_STORE_PATIENCE";
  absl::Duration patience = limits::kStorePatience;
  const char* text = std::getenv(kName);
  if (text == nullptr || *text == '\0') return patience;
  if (absl::ParseDuration(text, &patience) && patience >= absl::ZeroDuration()) return patience;
  return absl::InvalidArgumentError(absl::StrCat(kName, "=", text, ": expected a duration such as 30s"));
}

absl::Status RetryUnavailable(const Patience& patience, absl::FunctionRef<absl::Status()> attempt) {
  absl::Status status = attempt();
  const absl::Time failed = Now();
  Backoff backoff;
  for (bool first = true; absl::IsUnavailable(status); first = false) {
    const absl::Duration wait = backoff.Next();
    if (Now() + wait > failed + patience.Get()) break;
    if (first) {
      LogWarn("storage: {}; tried again for {}", status.message(), absl::FormatDuration(patience.Get()));
    }
    Sleep(wait);
    status = attempt();
  }
  return status;
}

}  // namespace recon
