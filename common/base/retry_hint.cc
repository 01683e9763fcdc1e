#include "common/base/retry_hint.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace recon {
namespace {

constexpr char kType[] = "recon/retry-after-ms";

}  // namespace

absl::Status WithRetryAfter(absl::Status status, absl::Duration wait) {
  status.SetPayload(kType, absl::Cord(absl::StrCat(absl::ToInt64Milliseconds(wait))));
  return status;
}

std::optional<absl::Duration> RetryAfter(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kType);
  int64_t milliseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &milliseconds)) return std::nullopt;
  return absl::Milliseconds(milliseconds);
}

}  // namespace recon
