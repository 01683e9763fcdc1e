#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "common/collective/call_frame.h"

namespace recon {

// What shows a server that a member has a place in an epoch of a set. Only the head of a job takes members
// into sets; for each member and each of the job's other servers it makes a ticket with a key that this
// server has told it alone. So these servers need no list of sets, and who was let in nowhere gets in
// nowhere.
// Pure.

// Of a key, drawn at random.
inline constexpr size_t kTicketKeyBytes = 32;
// 32 bytes: HMAC-SHA-256 (RFC 2104) over the set, epoch, place and number of members that `place` names.
std::string TicketFor(absl::string_view key, const CallHeader& place);
// Takes as long whatever is shown.
bool IsTicketFor(absl::string_view shown, absl::string_view key, const CallHeader& place);

}  // namespace recon
