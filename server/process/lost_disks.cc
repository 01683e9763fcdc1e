#include "server/process/lost_disks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/log.h"
#include "common/snapshot/control_state.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/tensor/shard_assignment.h"
#include "server/recovery/log_survey.h"

namespace recon {

bool LostDisks::GoesBack() {
  if (rollbacks_.certain()) return true;
  const std::vector<PlaceState> places = Places();
  head_.lost = false;  // Looked at once: from here on it goes on, or back.
  const std::optional<uint64_t> oldest = OldestOfLost(places);
  if (!oldest) return false;
  const absl::StatusOr<Manifest> snapshot =
      SnapshotReader(process_.store().get()).ReadManifest(Generation(*oldest));
  if (!snapshot.ok()) {
    LogError("whether all servers are of one state is not known: {}", snapshot.status().message());
    return false;
  }
  const std::vector<uint32_t> ahead = AheadOf(*snapshot, places);
  if (ahead.empty()) return false;
  std::vector<uint32_t> lost;
  for (const PlaceState& place : places) {
    if (place.lost) lost.push_back(place.server);
  }
  const Since since = CountSince(*snapshot);
  if (process_.flags().after_lost_disk == ServerFlags::AfterLostDisk::kNewest) {
    mixed_state_ = SayMixed(*snapshot, lost, ahead, since);
    LogError("SHARDS ARE OF DIFFERENT STATES: {}", mixed_state_);
    return false;
  }
  LogWarn(
      "{} came back from snapshot {} alone, and {} went on from it: all go back to it (--after-lost-disk "
      "together), and {} splits ({} samples) that were completed since are trained again, as is what {} "
      "pushes "
      "({} samples) had",
      Names(lost), *oldest, Names(ahead), since.splits, since.samples, since.pushes, since.push_samples);
  const absl::Status asked =
      rollbacks_.GoBackTogether(*oldest, absl::StrCat("after the lost disk of ", Names(lost)));
  if (asked.ok()) return true;
  mixed_state_ = SayMixed(*snapshot, lost, ahead, since);
  LogError("THE JOB CANNOT GO BACK: {}; SHARDS ARE OF DIFFERENT STATES: {}", asked.message(), mixed_state_);
  return false;
}

std::vector<PlaceState> LostDisks::Places() const {
  std::vector<PlaceState> places = cluster_.state().places;
  PlaceState head;
  head.lost = head_.lost;
  head.generation = head_.generation;
  head.sequence = process_.params()->position().sequence;
  places.insert(places.begin(), head);
  return places;
}

LostDisks::Since LostDisks::CountSince(const Manifest& snapshot) const {
  Since since;
  const absl::StatusOr<ControlState> now = process_.db()->Load();
  const absl::StatusOr<ControlState> then = DecodeControl(snapshot.control(), snapshot.model());
  if (now.ok() && then.ok()) {
    for (const auto& [split, completion] : now->completions) {
      if (completion.kind() != LEASE_TRAIN || then->completions.count(split) > 0) continue;
      ++since.splits;
      since.samples += completion.end() - completion.begin();
    }
  }
  const absl::StatusOr<LoggedWork> ours =
      CountWork(FileSystem::Local(), process_.log_directory(), snapshot.sequence() + 1,
                process_.params()->position().sequence);
  if (ours.ok()) {
    since.pushes = ours->pushes;
    since.push_samples = ours->samples;
  }
  for (const PlaceState& place : cluster_.state().places) {
    since.pushes = std::max(since.pushes, place.pushes_beyond);
    since.push_samples = std::max(since.push_samples, place.samples_beyond);
  }
  return since;
}

std::string LostDisks::Name(uint32_t server) const {
  if (server == 0) return "the head";
  return absl::StrCat("server ", server, " (", cluster_.Hellos()[server - 1].address(), ")");
}

std::string LostDisks::Names(const std::vector<uint32_t>& servers) const {
  return absl::StrJoin(servers, ", ",
                       [this](std::string* text, uint32_t server) { absl::StrAppend(text, Name(server)); });
}

std::string LostDisks::SharesOf(const std::vector<uint32_t>& servers) const {
  const auto layout = process_.params()->layout();
  const std::vector<uint32_t> server_of_shard = AssignShards(*layout, cluster_.servers());
  const auto theirs = std::count_if(server_of_shard.begin(), server_of_shard.end(), [&](uint32_t server) {
    return std::find(servers.begin(), servers.end(), server) != servers.end();
  });
  return absl::StrCat(theirs, " of ", server_of_shard.size(), " shards");
}

std::string LostDisks::SayMixed(const Manifest& snapshot, const std::vector<uint32_t>& lost,
                                const std::vector<uint32_t>& ahead, const Since& since) const {
  const bool head_lost = std::find(lost.begin(), lost.end(), 0U) != lost.end();
  const std::string pushes = absl::StrCat(since.pushes, " pushes (", since.push_samples, " samples)");
  std::string said =
      absl::StrCat(Names(lost), " came back from snapshot ", snapshot.generation(), " alone, and ",
                   Names(ahead), " went on from it (--after-lost-disk newest): ");
  if (head_lost) {
    absl::StrAppend(&said, "what was completed since is trained again, and counts twice in ", SharesOf(ahead),
                    ", which have ", pushes, " from then");
  } else {
    absl::StrAppend(&said, since.splits, " splits (", since.samples,
                    " samples) stay completed that were completed since, and ", SharesOf(lost),
                    " lack what they brought, ", pushes);
  }
  return said;
}

}  // namespace recon
