#include "worker/comm/server_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/away_words.h"
#include "common/base/clipped_text.h"
#include "common/base/shown_time.h"

namespace recon {
namespace {

// A connection that begins anew is no absence.
constexpr absl::Duration kAwayMin = absl::Seconds(2);
constexpr size_t kErrorBytesMax = 240;

}  // namespace

void ServerWatch::SetAddresses(const std::vector<std::string>& addresses) {
  MutexLock lock(&mu_);
  servers_.resize(addresses.size());
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (servers_[i].address == addresses[i]) continue;
    servers_[i] = About();
    servers_[i].address = addresses[i];
  }
}

void ServerWatch::Note(size_t server, const absl::Status& outcome, absl::Time now) {
  MutexLock lock(&mu_);
  if (server >= servers_.size()) return;
  About& about = servers_[server];
  if (!absl::IsUnavailable(outcome)) {
    about.since = absl::InfiniteFuture();
    about.stopped = false;
    return;
  }
  about.since = std::min(about.since, now);
  about.error = outcome;
  about.stopped = about.stopped || SaysDraining(outcome);
}

ServerWatch::Missing ServerWatch::Away(absl::Time now) const {
  Missing missing;
  MutexLock lock(&mu_);
  for (size_t i = 0; i < servers_.size(); ++i) {
    const About& about = servers_[i];
    if (i == 0) missing.head_stopped = about.stopped;
    if (about.since == absl::InfiniteFuture() || now - about.since < kAwayMin) continue;
    const std::string lasts = ShownSeconds(now - about.since);
    std::string clause =
        absl::StrCat(i == 0 ? "the head" : absl::StrCat("server ", i), " at ", about.address);
    if (SaysNoPlace(about.error)) {
      absl::StrAppend(&clause, " restores its state");
    } else if (about.stopped) {
      absl::StrAppend(&clause, " was stopped in good order ", lasts, " ago");
    } else {
      absl::StrAppend(&clause, " cannot be reached for ", lasts, ": ",
                      ClippedText(about.error.message(), kErrorBytesMax));
    }
    if (i == 0) {
      missing.head = std::move(clause);
    } else {
      missing.others.push_back(std::move(clause));
    }
  }
  return missing;
}

}  // namespace recon
