#include "worker/comm/wait_watch.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/away_words.h"
#include "common/base/clipped_text.h"
#include "common/base/shown_time.h"

namespace recon {
namespace {

// What stands still for two reasons is said once.
constexpr absl::Duration kSaidBetween = absl::Seconds(3);
constexpr size_t kErrorBytesMax = 240;

std::string AboutHead(const WaitWatch::Seen& seen, absl::Time now) {
  const std::string lasts = ShownSeconds(now - seen.answered_at);
  const std::string head = absl::StrCat("the head at ", seen.head);
  if (SaysJobWaits(seen.error)) return absl::StrCat(head, " is there, and says: ", seen.error.message());
  if (SaysDraining(seen.error)) return absl::StrCat(head, " drains the job");
  if (seen.stopped)
    return absl::StrCat(head, " was stopped in good order, and last heard of ", lasts, " ago");
  return absl::StrCat(head, " cannot be reached for ", lasts, ": ",
                      ClippedText(seen.error.message(), kErrorBytesMax));
}

}  // namespace

bool WaitWatch::NoteOwn(const Seen& seen, absl::Time now) {
  const bool computes = seen.waits_for == nullptr;
  // Between two waits of one kind there is a moment of neither.
  if (computes && computed_) own_.Reset();
  computed_ = computes;
  return !computes && own_.Note(seen.progress, now);
}

std::optional<std::string> WaitWatch::Note(const Seen& seen, absl::Time now) {
  const bool own = NoteOwn(seen, now);
  const bool head = head_.Note(static_cast<uint64_t>(absl::ToUnixNanos(seen.answered_at)), now);
  if (seen.head_says.empty()) job_.Reset();
  const bool job = !seen.head_says.empty() && job_.Note(0, now);
  // Where the head says why, its words are said when they are due, with the own wait before them.
  const bool alone = seen.head_says.empty() && (own || head) && now - said_at_ >= kSaidBetween;
  if (!job && !alone) return std::nullopt;
  said_at_ = now;
  std::vector<std::string> parts = seen.away;
  if (!seen.error.ok()) parts.insert(parts.begin(), AboutHead(seen, now));
  if (seen.error.ok() && !seen.head_says.empty())
    parts.push_back(absl::StrCat("the head at ", seen.head, " says: ", seen.head_says));
  const absl::Duration waited = seen.waits_for == nullptr ? absl::ZeroDuration() : own_.Waited(now);
  if (waited < StallWatch::kFirst / 2) return absl::StrJoin(parts, "; ");
  return absl::StrCat("waiting for ", ShownSeconds(waited), " for ", seen.waits_for,
                      parts.empty() ? "" : ": ", absl::StrJoin(parts, "; "));
}

}  // namespace recon
