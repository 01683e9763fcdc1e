#pragma once

#include <algorithm>
#include <string>

#include "absl/time/time.h"

namespace recon {

// A span of time as a sentence has it, in whole seconds: "12s", "2m5s"; "0s" for what is shorter than one.
inline std::string ShownSeconds(absl::Duration span) {
  const absl::Duration whole = absl::Trunc(std::max(span, absl::ZeroDuration()), absl::Seconds(1));
  return whole == absl::ZeroDuration() ? "0s" : absl::FormatDuration(whole);
}

}  // namespace recon
