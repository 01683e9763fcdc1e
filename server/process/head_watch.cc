#include "server/process/head_watch.h"

#include "absl/strings/str_cat.h"
#include "common/base/shown_time.h"

namespace recon {

std::optional<std::string> HeadWatch::Note(const Seen& seen, absl::Time now) {
  const bool say_silence = silence_.Note(static_cast<uint64_t>(absl::ToUnixNanos(seen.heard_at)), now);
  if (silence_.Standing(now) > absl::ZeroDuration()) {
    job_.Reset();  // What it said is old.
    if (!say_silence) return std::nullopt;
    const std::string lasts = ShownSeconds(now - seen.heard_at);
    if (seen.drains) {
      return absl::StrCat("the head at ", seen.head, " drains the job, and was heard of ", lasts,
                          " ago: waiting for its end");
    }
    if (seen.error.empty())
      return absl::StrCat("waiting for the head at ", seen.head, ", silent for ", lasts);
    return absl::StrCat("waiting for the head at ", seen.head, ", which cannot be reached for ", lasts, ": ",
                        seen.error);
  }
  if (seen.waits_for.empty()) {
    job_.Reset();
    return std::nullopt;
  }
  if (!job_.Note(0, now)) return std::nullopt;
  return absl::StrCat("the head at ", seen.head, " says: ", seen.waits_for);
}

}  // namespace recon
