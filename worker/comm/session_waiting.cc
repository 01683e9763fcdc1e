// What a worker says of what it waits for.

#include <optional>
#include <string>

#include "common/base/away_words.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "worker/comm/session.h"

namespace recon {

void Session::TellOfWaiting(const absl::Status& outcome) {
  const absl::Time now = Now();
  WaitWatch::Seen seen;
  seen.head = options_.head;
  seen.error = outcome;
  seen.progress = counters_.batches + counters_.batches_begun;
  if (counters_.waiting > 0) seen.waits_for = counters_.waits_for;
  const ServerWatch::Missing missing =
      options_.servers_away ? options_.servers_away() : ServerWatch::Missing();
  seen.away = missing.others;
  if (outcome.ok() && !missing.head.empty()) seen.away.insert(seen.away.begin(), missing.head);
  std::optional<std::string> line;
  {
    MutexLock lock(&telling_);
    if (outcome.ok() || answered_at_ == absl::InfinitePast()) answered_at_ = now;
    head_drains_ = head_drains_ || missing.head_stopped || SaysDraining(outcome);
    if (!outcome.ok()) head_says_.clear();
    seen.answered_at = answered_at_;
    seen.stopped = head_drains_;
    seen.head_says = head_says_;
    line = wait_watch_.Note(seen, now);
  }
  if (line && !line->empty()) LogWarn("{}", *line);
}

}  // namespace recon
