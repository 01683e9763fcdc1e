#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// How a server that is reached says why it takes nothing: its words cross the network with an Unavailable
// status, and tell a server that ends in good order, or begins, from one that is dead.
namespace recon {

inline constexpr char kDrainingText[] = "the server is draining";
inline constexpr char kNoPlaceText[] = "the server has no place in the job yet";
inline constexpr char kJobWaitsText[] = "the job waits for ";

inline absl::Status DrainingError() { return absl::UnavailableError(kDrainingText); }
inline absl::Status NoPlaceError() { return absl::UnavailableError(kNoPlaceText); }
// `what`: as OtherServers::Missing() says it.
inline absl::Status JobWaitsError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(kJobWaitsText, what));
}

inline bool SaysDraining(const absl::Status& status) {
  return absl::IsUnavailable(status) && absl::StrContains(status.message(), kDrainingText);
}
inline bool SaysNoPlace(const absl::Status& status) {
  return absl::IsUnavailable(status) && absl::StrContains(status.message(), kNoPlaceText);
}
inline bool SaysJobWaits(const absl::Status& status) {
  return absl::IsUnavailable(status) && absl::StrContains(status.message(), kJobWaitsText);
}

}  // namespace recon
