#include "server/cluster/server_links.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/clipped_text.h"
#include "common/base/limits.h"
#include "common/base/shown_time.h"
#include "common/base/status_macros.h"
#include "server/cluster/place_table.h"
#include "server/cluster/report_checks.h"

namespace recon {
namespace {

// Servers report several times a second.
constexpr absl::Duration kSilenceShown = absl::Seconds(3);

}  // namespace

ServerLinks::ServerLinks(uint32_t servers, OnLost on_lost)
    : servers_(servers), on_lost_(std::move(on_lost)), places_(servers) {}

void ServerLinks::Start(absl::Time now) {
  MutexLock lock(&mu_);
  for (Place& place : places_) place.last_heard = now;
}

std::shared_ptr<ServerLink> ServerLinks::Connect(uint32_t place, const std::shared_ptr<ServerLink>& link,
                                                 const ServerHello& hello, absl::Time now) {
  RECON_CHECK(place > 0 && place < servers_, "a place that is none is given away");
  MutexLock lock(&mu_);
  Place& taken = places_[place];
  std::shared_ptr<ServerLink> before = taken.link;
  Lose(place);
  taken.link = link;
  taken.hello = hello;
  taken.last_heard = now;
  taken.progress = ServerProgress();
  taken.stopped_why.clear();
  return before;
}

void ServerLinks::Lose(uint32_t place) {
  places_[place].state = State::kAwaited;
  places_[place].link = nullptr;
  places_[place].hello.clear_ticket_key();  // That process' own.
  on_lost_(place);
}

void ServerLinks::Assign(uint32_t place, const Assignment& assignment) {
  MutexLock lock(&mu_);
  if (places_[place].link != nullptr) Tell(place, assignment);
}

void ServerLinks::AssignAll(const Assignment& assignment) {
  MutexLock lock(&mu_);
  for (uint32_t i = 1; i < places_.size(); ++i) {
    if (places_[i].link != nullptr) Tell(i, assignment);
  }
}

void ServerLinks::Tell(uint32_t place, Assignment assignment) {
  Place& assigned = places_[place];
  assigned.state = State::kAssigned;
  assignment.set_server(place);
  assignment.set_resume(Resumes(assigned.hello, place, servers_));
  if (assigned.newest) assignment.set_newest_sequence(*assigned.newest);
  ServerCommand command;
  *command.mutable_assign() = std::move(assignment);
  assigned.link->Send(command);
}

uint32_t ServerLinks::Find(const ServerLink* link) const {
  for (uint32_t i = 1; i < places_.size(); ++i) {
    if (places_[i].link.get() == link) return i;
  }
  return 0;
}

uint32_t ServerLinks::PlaceOf(const ServerLink* link) const {
  MutexLock lock(&mu_);
  return Find(link);
}

absl::StatusOr<uint32_t> ServerLinks::Note(const ServerLink* link, const ServerReport& report,
                                           absl::Time now) {
  MutexLock lock(&mu_);
  const uint32_t place = Find(link);
  if (place == 0) return place;
  Place& from = places_[place];
  from.last_heard = now;
  if (report.has_progress()) {
    RECON_RETURN_IF_ERROR(CheckProgress(report.progress(), from.progress));
    from.progress = report.progress();
    from.closings.erase(from.closings.begin(), from.closings.lower_bound(from.progress.frontier_step()));
  } else if (report.has_drained()) {
    from.drained = true;
  } else if (report.has_leaving()) {
    from.stopped_why = ClippedText(report.leaving().why(), limits::kNameBytesMax);
    if (from.stopped_why.empty()) from.stopped_why = "it was asked to";
  }
  return place;
}

bool ServerLinks::NoteReady(const ServerLink* link, const ServerReady& ready) {
  MutexLock lock(&mu_);
  const uint32_t place = Find(link);
  if (place == 0 || places_[place].state != State::kAssigned) return false;
  places_[place].ready = ready;
  places_[place].state = State::kReady;
  return true;
}

bool ServerLinks::NoteValues(const ServerLink* link, uint64_t round) {
  MutexLock lock(&mu_);
  const uint32_t place = Find(link);
  if (place == 0 || round != initial_values_round_) return false;
  places_[place].ready.set_has_values(true);
  return true;
}

ServerLinks::Dropped ServerLinks::Drop(const ServerLink* link, absl::Time now) {
  MutexLock lock(&mu_);
  const uint32_t place = Find(link);
  if (place == 0) return {};
  Lose(place);
  places_[place].last_heard = now;
  return {place, places_[place].hello.address(), places_[place].stopped_why};
}

std::vector<std::shared_ptr<ServerLink>> ServerLinks::Silent(absl::Time now,
                                                             absl::Duration longer_than) const {
  std::vector<std::shared_ptr<ServerLink>> silent;
  MutexLock lock(&mu_);
  for (const Place& place : places_) {
    if (place.link != nullptr && now - place.last_heard > longer_than) silent.push_back(place.link);
  }
  return silent;
}

std::vector<ServerLinks::Gap> ServerLinks::Gaps() const {
  std::vector<Gap> gaps;
  MutexLock lock(&mu_);
  for (uint32_t i = 1; i < places_.size(); ++i) {
    const Place& place = places_[i];
    if (place.link != nullptr) continue;
    Gap& gap = gaps.emplace_back();
    gap.place = i;
    gap.since = place.last_heard;
    const uint64_t reported = place.progress.sequence();
    if (reported > 0 && place.newest) gap.unsaved = reported - std::min(*place.newest, reported);
  }
  return gaps;
}

void ServerLinks::SendToLive(const ServerCommand& command) {
  for (const Place& place : places_) {
    if (place.state == State::kLive) place.link->Send(command);
  }
}

void ServerLinks::Broadcast(const ServerCommand& command) {
  const uint64_t state =
      command.has_restore_state() ? command.restore_state().upload() : command.commit_state();
  MutexLock lock(&mu_);
  for (Place& place : places_) {
    if (state != 0 && place.state == State::kLive) place.ready.set_state_version(state);
  }
  SendToLive(command);
}

void ServerLinks::SendToAll(const ServerCommand& command) {
  MutexLock lock(&mu_);
  for (const Place& place : places_) {
    if (place.link != nullptr) place.link->Send(command);
  }
}

void ServerLinks::SayMissed(Place* place) {
  for (const auto& [step, closing] : place->closings) {
    ServerCommand close;
    close.set_close(closing);
    place->link->Send(close);
  }
  if (frontier_) {
    ServerCommand frontier;
    *frontier.mutable_frontier() = *frontier_;
    place->link->Send(frontier);
  }
  ServerCommand hurry;
  hurry.set_hurry(hurry_);
  place->link->Send(hurry);
}

void ServerLinks::BeginEpoch(uint64_t epoch) {
  ServerCommand begin;
  begin.mutable_begin()->set_cluster_epoch(epoch);
  MutexLock lock(&mu_);
  for (uint32_t i = 1; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (place.state == State::kReady) {
      SayMissed(&place);
      place.state = State::kLive;
      place.ready.set_lost(false);  // From here on it goes on with all others.
    }
    if (place.link != nullptr) place.link->Send(begin);
  }
}

void ServerLinks::AwaitInitialValues(WorkerId worker) {
  ServerCommand command;
  command.mutable_await_initial_values()->set_worker(worker.value());
  MutexLock lock(&mu_);
  command.mutable_await_initial_values()->set_round(++initial_values_round_);
  for (Place& place : places_) place.ready.set_has_values(false);
  SendToLive(command);
}

void ServerLinks::Close(uint32_t place, uint64_t step, const std::string& closing) {
  RECON_CHECK(place > 0 && place < servers_, "a closing for a place that is none");
  ServerCommand command;
  command.set_close(closing);
  MutexLock lock(&mu_);
  Place& told = places_[place];
  told.closings.emplace(step, closing);
  if (told.state == State::kLive) told.link->Send(command);
}

void ServerLinks::MoveFrontier(const Frontier& frontier) {
  ServerCommand command;
  *command.mutable_frontier() = frontier;
  MutexLock lock(&mu_);
  frontier_ = frontier;
  SendToLive(command);
}

void ServerLinks::Hurry(int change) {
  ServerCommand command;
  MutexLock lock(&mu_);
  hurry_ += change;
  command.set_hurry(hurry_);
  SendToLive(command);
}

void ServerLinks::NotePublished(std::optional<uint64_t> attempt,
                                const std::map<uint32_t, uint64_t>& sequences) {
  MutexLock lock(&mu_);
  for (const auto& [place, sequence] : sequences) {
    if (place < places_.size()) places_[place].newest = sequence;
  }
  if (!attempt) return;
  for (Place& place : places_) {
    if (place.state == State::kLive) place.ready.set_needs_snapshot(false);
  }
  ServerCommand command;
  command.set_published(*attempt);
  SendToLive(command);
}

bool ServerLinks::Drain(absl::Duration timeout) {
  ServerCommand command;
  command.mutable_drain();
  MutexLock lock(&mu_);
  SendToLive(command);
  return mu_.AwaitFor(timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::all_of(places_.begin() + 1, places_.end(),
                       [](const Place& p) { return p.drained || p.state < State::kLive; });
  });
}

bool ServerLinks::AllAtLeast(State state) const {
  return std::all_of(places_.begin() + 1, places_.end(),
                     [state](const Place& p) { return p.state >= state; });
}

ServersState ServerLinks::state() const {
  ServersState all;
  MutexLock lock(&mu_);
  all.complete = AllAtLeast(State::kReady);
  all.live = AllAtLeast(State::kLive);
  all.all_have_values = all.complete;
  for (auto place = places_.begin() + 1; place != places_.end(); ++place) {
    const bool has_values = place->state >= State::kReady && place->ready.has_values();
    all.all_have_values = all.all_have_values && has_values;
    all.needs_snapshot = all.needs_snapshot || (has_values && place->ready.needs_snapshot());
    all.highest_epoch = std::max(all.highest_epoch, place->ready.cluster_epoch());
    all.highest_frontier = std::max(all.highest_frontier, place->ready.frontier_step());
    all.replay_seconds = std::max(all.replay_seconds, place->progress.replay_seconds());
    all.log_wants_snapshot = all.log_wants_snapshot || place->progress.log_wants_snapshot();
    if (const std::string& full = place->progress.log_full(); place->link != nullptr && !full.empty()) {
      absl::StrAppend(&all.full_logs, all.full_logs.empty() ? "" : ", and for ", "server ",
                      all.places.size() + 1, " at ", place->hello.address(), ": ",
                      ClippedText(full, limits::kProgressTextBytesMax));
    }
    const ServerReady& ready = place->ready;
    all.places.push_back({static_cast<uint32_t>(all.places.size()) + 1, ready.lost(), ready.generation(),
                          std::max(ready.sequence(), place->progress.sequence()), ready.pushes_beyond(),
                          ready.samples_beyond(), ready.state_version()});
  }
  return all;
}

std::string ServerLinks::AboutMissing(uint32_t place, absl::Time now) const {
  const Place& about = places_[place];
  const std::string& address = about.hello.address();
  const std::string name = absl::StrCat("server ", place, address.empty() ? "" : " at ", address);
  const std::string ago = ShownSeconds(now - about.last_heard);
  if (about.link != nullptr) {
    if (now - about.last_heard < kSilenceShown && about.state == State::kAssigned)
      return absl::StrCat(name, ", which restores its state");
    // Where there is no model yet, it has nothing to restore.
    return now - about.last_heard < kSilenceShown ? "" : absl::StrCat(name, ", silent for ", ago);
  }
  if (!about.stopped_why.empty()) {
    return absl::StrCat(name, ", which was stopped in good order ", ago, " ago (", about.stopped_why, ")");
  }
  if (address.empty()) return absl::StrCat(name, ", which has not come since this head began ", ago, " ago");
  return absl::StrCat(name, ", which cannot be reached for ", ago);
}

std::string ServerLinks::Missing(absl::Time now) const {
  MutexLock lock(&mu_);
  std::vector<std::string> missing;
  for (uint32_t i = 1; i < places_.size(); ++i) {
    std::string about = AboutMissing(i, now);
    if (!about.empty()) missing.push_back(std::move(about));
  }
  return absl::StrJoin(missing, ", and for ");
}

std::vector<ServerHello> ServerLinks::Hellos() const {
  MutexLock lock(&mu_);
  std::vector<ServerHello> hellos;
  for (auto place = places_.begin() + 1; place != places_.end(); ++place) hellos.push_back(place->hello);
  return hellos;
}

std::vector<ServerStatus> ServerLinks::Status(absl::Time now) const {
  std::vector<ServerStatus> servers;
  MutexLock lock(&mu_);
  for (uint32_t i = 1; i < places_.size(); ++i) {
    const Place& place = places_[i];
    ServerStatus& out = servers.emplace_back();
    out.set_server(i);
    const bool stopped = place.link == nullptr && !place.stopped_why.empty();
    out.set_state(stopped                           ? SERVER_STOPPED
                  : place.state == State::kAwaited  ? SERVER_AWAITED
                  : place.state == State::kAssigned ? SERVER_RECOVERING
                                                    : SERVER_READY);
    out.set_address(place.hello.address());
    out.set_pushes(place.progress.pushes());
    out.set_recover_ms(place.progress.recover_ms());
    out.set_log_bytes(place.progress.log_bytes());
    out.set_log_budget_bytes(place.progress.log_budget_bytes());
    out.set_heard_ms(absl::ToDoubleMilliseconds(now - place.last_heard));
  }
  return servers;
}

}  // namespace recon
