#include "server/history/status_changes.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/util/message_differencer.h"

namespace recon {
namespace {

class Changes {
 public:
  void Add(const char* kind, const std::string& subject, const std::string& text, int64_t unix_ms = 0) {
    HistoryEvent& event = events_.emplace_back();
    event.set_kind(kind);
    event.set_subject(subject);
    event.set_text(text);
    event.set_unix_ms(unix_ms);
  }
  std::vector<HistoryEvent> Take() { return std::move(events_); }

 private:
  std::vector<HistoryEvent> events_;
};

std::string PolicyText(const PolicySettings& policy) {
  std::string text = policy.sync();
  if (policy.local_steps() > 0) absl::StrAppend(&text, ", ", policy.local_steps(), " local steps");
  if (!policy.outer_optimizer().empty()) absl::StrAppend(&text, ", outer ", policy.outer_optimizer());
  if (!policy.staleness_correction().empty() && policy.staleness_correction() != "none")
    absl::StrAppend(&text, ", correction ", policy.staleness_correction());
  return text;
}

std::string BoundText(const JobConfig& job) {
  const std::string text = job.bound() < 0    ? "asp"
                           : job.bound() == 0 ? "bsp"
                                              : absl::StrCat("ssp:", job.bound());
  return job.has_local() ? absl::StrCat(text, ", ", job.local().steps(), " local steps") : text;
}

void AddPhase(const StatusReply* before, const StatusReply& now, Changes* changes) {
  if (before != nullptr && before->phase() == now.phase()) return;
  switch (now.phase()) {
    case PHASE_RUNNING:
      return changes->Add("running", "",
                          absl::StrCat("training ", now.model(), " with ", BoundText(now.job())));
    case PHASE_DRAINING:
      return changes->Add("draining", "", "no new work is handed out");
    case PHASE_FINISHED:
      return changes->Add("finished", "",
                          absl::StrCat("all ", now.job().data_epochs(), " data epochs are completed"));
    default:
      return;
  }
}

void AddPolicy(const StatusReply& before, const StatusReply& now, Changes* changes) {
  using google::protobuf::util::MessageDifferencer;
  const bool settings = !MessageDifferencer::Equals(before.job().policy(), now.job().policy());
  const bool reason = before.policy_reason() != now.policy_reason() && !now.policy_reason().empty();
  if (settings) {
    changes->Add("policy", "",
                 absl::StrCat(PolicyText(before.job().policy()), " -> ", PolicyText(now.job().policy())));
  } else if (BoundText(before.job()) != BoundText(now.job()) || reason) {
    changes->Add("policy", "", absl::StrCat(BoundText(now.job()), ": ", now.policy_reason()));
  }
  const CodecChoice& choice = now.codec_choice();
  if (now.has_codec_choice() &&
      (choice.push() != before.codec_choice().push() || choice.pull() != before.codec_choice().pull())) {
    changes->Add("codec", "",
                 absl::StrCat(choice.push(), ", parameters in ", choice.pull(), ": ", now.codec_reason()));
  }
}

void AddSnapshots(const SnapshotStatus& before, const SnapshotStatus& now, Changes* changes) {
  if (now.generation() != before.generation() && now.published() > 0) {
    changes->Add("snapshot", absl::StrCat(now.generation()),
                 absl::StrFormat("published in %.2f s, %d bytes, root %s...", now.seconds(),
                                 now.stored_bytes(), now.state_root().substr(0, 12)));
  }
  if (now.failed() > before.failed()) changes->Add("snapshot_failed", "", now.last_error());
  if (now.non_finite_values() > 0 && now.generation() != before.generation()) {
    changes->Add("diverged", "",
                 absl::StrCat("snapshot ", now.generation(), " has ", now.non_finite_values(),
                              " values that are not finite"));
  }
}

void AddTrouble(const StatusReply& before, const StatusReply& now, Changes* changes) {
  if (now.divergence() != before.divergence() && !now.divergence().empty())
    changes->Add("diverged", "", now.divergence());
  if (now.mixed_state() != before.mixed_state() && !now.mixed_state().empty())
    changes->Add("mixed_state", "", now.mixed_state());
  if (now.standing_seconds() > 0 && before.standing_seconds() == 0)
    changes->Add("standing", "", now.waits_for());
  if (now.standing_seconds() == 0 && before.standing_seconds() > 0)
    changes->Add("moving", "", absl::StrFormat("after %.0f s", before.standing_seconds()));
}

void AddServers(const StatusReply& before, const StatusReply& now, Changes* changes) {
  for (int i = 0; i < now.servers_size(); ++i) {
    const ServerStatus& server = now.servers(i);
    const bool known = i < before.servers_size();
    if (known && before.servers(i).state() == server.state()) continue;
    const bool away = server.state() == SERVER_AWAITED || server.state() == SERVER_STOPPED;
    if (!known && away) continue;
    const char* text = server.state() == SERVER_READY        ? "ready at "
                       : server.state() == SERVER_RECOVERING ? "restores its shards at "
                       : server.state() == SERVER_STOPPED    ? "stopped in good order; it was at "
                                                             : "lost; it was at ";
    changes->Add("server", absl::StrCat("server ", server.server()), absl::StrCat(text, server.address()));
  }
}

void AddMember(const MemberStatus* before, const MemberStatus& now, Changes* changes) {
  const bool gone = now.state() == MEMBER_GONE;
  const bool was_there = before != nullptr && before->state() != MEMBER_GONE;
  const std::string what = absl::StrCat(now.device(), ", codec ", now.codec());
  if (before == nullptr) {
    changes->Add("joined", now.name(), what);
  } else if (before->incarnation() != now.incarnation()) {
    changes->Add("restarted", now.name(),
                 was_there ? absl::StrCat("another process took its place: ", what) : what);
  } else if (!was_there && !gone) {
    changes->Add("returned", now.name(), what);
  }
  if (gone && (before == nullptr || was_there || before->incarnation() != now.incarnation())) {
    changes->Add(absl::StartsWith(now.gone_why(), "left") ? "left" : "evicted", now.name(), now.gone_why());
    return;
  }
  if (!was_there || gone) return;
  const bool suspected = before->state() == MEMBER_SUSPECT;
  if (now.state() == MEMBER_SUSPECT && !suspected)
    changes->Add("suspected", now.name(),
                 absl::StrFormat("not heard of for %.1f s", now.heartbeat_age_ms() / 1000));
  if (suspected && now.state() != MEMBER_SUSPECT && before->incarnation() == now.incarnation())
    changes->Add("heard", now.name(), "heard of again");
}

void AddMembers(const StatusReply* before, const StatusReply& now, Changes* changes) {
  std::map<std::string, const MemberStatus*> members;
  if (before != nullptr) {
    for (const MemberStatus& member : before->members()) members[member.name()] = &member;
  }
  for (const MemberStatus& member : now.members()) {
    const auto found = members.find(member.name());
    AddMember(found == members.end() ? nullptr : found->second, member, changes);
  }
}

void AddStart(const StatusReply& now, Changes* changes) {
  std::string text = absl::StrCat("cluster epoch ", now.cluster_epoch());
  if (now.restored_generation() > 0)
    absl::StrAppend(&text, ", restored from snapshot ", now.restored_generation());
  changes->Add("started", "", text);
}

}  // namespace

std::vector<HistoryEvent> StatusChanges(const StatusReply* before, const StatusReply& now) {
  Changes changes;
  if (before == nullptr) AddStart(now, &changes);
  const StatusReply nothing;
  const StatusReply& known = before == nullptr ? nothing : *before;
  if (now.rollback().done() && now.rollback().history() != known.rollback().history()) {
    changes.Add("rollback", "",
                absl::StrCat(now.rollback().reason(), "; goes on from snapshot ", now.rollback().published()),
                now.rollback().unix_ms());
  }
  AddPhase(before, now, &changes);
  if (before != nullptr) AddPolicy(known, now, &changes);
  AddServers(known, now, &changes);
  AddSnapshots(known.snapshot(), now.snapshot(), &changes);
  AddTrouble(known, now, &changes);
  AddMembers(before, now, &changes);
  return changes.Take();
}

}  // namespace recon
