#include "server/cluster/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/tensor/shard_assignment.h"

namespace recon {

Cluster::Cluster(const Options& options, const ServerTable& table)
    : options_(options), servers_(options.assignment.servers()) {
  places_.resize(servers_);
  for (int i = 1; i < table.id_size() && i < static_cast<int>(places_.size()); ++i)
    places_[i].id = table.id(i);
}

void Cluster::Start(ParamServer* params, Lane* lane, Events events) {
  params_ = params;
  lane_ = lane;
  events_ = std::move(events);
  MutexLock lock(&mu_);
  for (Place& place : places_) place.last_heard = Now();
}

void Cluster::OnReport(const std::shared_ptr<ServerLink>& link, const ServerReport& report) {
  const absl::Time now = Now();
  uint32_t place = 0;
  {
    MutexLock lock(&mu_);
    for (Spare& spare : spares_) {
      if (spare.link == link) spare.last_heard = now;
    }
    place = PlaceOf(link.get());
    if (place != 0) {
      places_[place].last_heard = now;
      if (report.has_progress()) {
        places_[place].progress = report.progress();
        auto& closings = places_[place].closings;
        closings.erase(closings.begin(), closings.lower_bound(report.progress().frontier_step()));
      } else if (report.has_part() && report.part().attempt() == attempt_) {
        parts_[place] = report.part();
      } else if (report.has_drained()) {
        places_[place].drained = true;
      }
    }
  }
  if (report.has_hello()) {
    lane_->Post([this, link, hello = report.hello()] { Join(link, hello, Now()); });
  } else if (place == 0) {
    return;  // A spare, or one whose place is another's by now.
  } else if (report.has_delivered()) {
    const PushDelivered& push = report.delivered();
    params_->peers()->NoteDelivered(WorkerId(push.worker()), Incarnation(push.incarnation()), push.step(),
                                    {push.shards().begin(), push.shards().end()}, push.push_parts());
  } else if (report.has_ready()) {
    lane_->Post([this, link, ready = report.ready()] { OnReady(link, ready); });
  } else if (report.has_initial_values()) {
    lane_->Post([this, link, round = report.initial_values().round()] {
      {
        MutexLock lock(&mu_);
        const uint32_t from = PlaceOf(link.get());
        if (from == 0 || round != initial_values_round_) return;
        places_[from].ready.set_has_values(true);
      }
      events_.changed();
    });
  }
}

uint32_t Cluster::PlaceOf(const ServerLink* link) const {
  for (uint32_t i = 1; i < places_.size(); ++i) {
    if (places_[i].link.get() == link) return i;
  }
  return 0;
}

uint32_t Cluster::PlaceFor(const ServerHello& hello) const {
  for (uint32_t i = 1; i < places_.size(); ++i) {
    if (places_[i].id == hello.server_id()) return i;
  }
  // A table that was lost is made again by those who come with what they have.
  if (hello.servers() == places_.size() && hello.server() > 0 && hello.server() < places_.size() &&
      places_[hello.server()].id == 0) {
    return hello.server();
  }
  for (uint32_t i = 1; i < places_.size(); ++i) {
    if (places_[i].id == 0) return i;
  }
  return 0;
}

void Cluster::Join(const std::shared_ptr<ServerLink>& link, const ServerHello& hello, absl::Time now) {
  if (hello.server_id() == 0 || hello.address().empty()) {
    return link->Close(absl::InvalidArgumentError("a server without number or address"));
  }
  if (hello.job_id() != 0 && hello.job_id() != options_.assignment.job_id()) {
    return link->Close(absl::FailedPreconditionError(absl::StrCat("its --data is of job ",
                                                                  absl::Hex(hello.job_id()), ", this is job ",
                                                                  absl::Hex(options_.assignment.job_id()))));
  }
  uint32_t place = 0;
  {
    MutexLock lock(&mu_);
    place = PlaceFor(hello);
    if (place == 0) {
      if (hello.servers() == places_.size()) {
        // Not to be taken for a spare: somebody may want what it has.
        return link->Close(absl::FailedPreconditionError(
            absl::StrCat("its place ", hello.server(),
                         " is another server's by now; to use it as a new server, give "
                         "it an empty --data")));
      }
      spares_.push_back({link, hello, now});
    }
  }
  if (place == 0) {
    LogInfo("server {} waits: all {} places are taken", hello.address(), servers());
    return;
  }
  Take(place, link, hello, now);
}

void Cluster::Take(uint32_t place, const std::shared_ptr<ServerLink>& link, const ServerHello& hello,
                   absl::Time now) {
  ServerTable table;
  std::shared_ptr<ServerLink> before;
  {
    MutexLock lock(&mu_);
    for (uint32_t i = 0; i < places_.size(); ++i)
      table.add_id(i == place ? hello.server_id() : places_[i].id);
  }
  if (const absl::Status saved = events_.save(table); !saved.ok()) {
    return link->Close(absl::UnavailableError(saved.message()));
  }
  {
    MutexLock lock(&mu_);
    Place& taken = places_[place];
    before = taken.link;
    Lose(place);
    taken.link = link;
    taken.id = hello.server_id();
    taken.hello = hello;
    taken.last_heard = now;
    taken.progress = ServerProgress();
    if (model_) Assign(place);
  }
  if (before != nullptr) before->Close(absl::UnavailableError("it has come again on another connection"));
  if (!Resumes(place, hello)) params_->peers()->ForgetDeliveriesTo(place);
  LogInfo("server {} has place {} of {}", hello.address(), place, servers());
}

bool Cluster::Resumes(uint32_t place, const ServerHello& hello) const {
  return hello.server() == place && hello.servers() == options_.assignment.servers();
}

void Cluster::Assign(uint32_t place) {
  Place& assigned = places_[place];
  assigned.state = State::kAssigned;
  ServerCommand command;
  *command.mutable_assign() = options_.assignment;
  command.mutable_assign()->set_server(place);
  *command.mutable_assign()->mutable_model() = *model_;
  command.mutable_assign()->set_resume(Resumes(place, assigned.hello));
  assigned.link->Send(command);
}

void Cluster::SetModel(const ModelSpec& model) {
  MutexLock lock(&mu_);
  if (model_) return;
  model_ = model;
  for (uint32_t i = 1; i < places_.size(); ++i) {
    if (places_[i].link != nullptr) Assign(i);
  }
}

void Cluster::OnReady(const std::shared_ptr<ServerLink>& link, const ServerReady& ready) {
  {
    MutexLock lock(&mu_);
    const uint32_t place = PlaceOf(link.get());
    if (place == 0 || places_[place].state != State::kAssigned) return;
    places_[place].ready = ready;

    places_[place].state = State::kReady;
  }
  events_.changed();
}

void Cluster::Lose(uint32_t place) {
  Place& lost = places_[place];
  lost.state = State::kAwaited;
  lost.link = nullptr;
  if (generation_ != 0) {
    snapshot_failure_.Update(absl::UnavailableError(absl::StrCat("server ", place, " has gone")));
  }
}

void Cluster::OnClosed(const std::shared_ptr<ServerLink>& link) {
  uint32_t place = 0;
  {
    MutexLock lock(&mu_);
    spares_.erase(
        std::remove_if(spares_.begin(), spares_.end(), [&](const Spare& s) { return s.link == link; }),
        spares_.end());
    place = PlaceOf(link.get());
    if (place == 0) return;
    Lose(place);
    places_[place].last_heard = Now();
  }
  LogWarn("server {} has gone: pushes wait until it is back", place);
}

void Cluster::Tick(absl::Time now) {
  std::vector<std::shared_ptr<ServerLink>> silent;
  std::vector<std::pair<uint32_t, Spare>> replacements;
  {
    MutexLock lock(&mu_);
    for (const Spare& spare : spares_) {
      if (now - spare.last_heard > options_.silence_max) silent.push_back(spare.link);
    }
    for (uint32_t i = 1; i < places_.size(); ++i) {
      const Place& place = places_[i];
      if (place.link != nullptr) {
        if (now - place.last_heard > options_.silence_max) silent.push_back(place.link);
      } else if (now - place.last_heard > options_.replace_after) {
        const auto alive = std::find_if(spares_.begin(), spares_.end(), [&](const Spare& spare) {
          return now - spare.last_heard <= options_.silence_max;
        });
        if (alive == spares_.end()) continue;
        replacements.emplace_back(i, *alive);
        spares_.erase(alive);
      }
    }
  }
  for (const auto& link : silent) {
    OnClosed(link);
    link->Close(absl::UnavailableError("it was silent for too long"));
  }
  for (auto& [place, spare] : replacements) {
    LogWarn("server {} does not come back: {} takes its place, from the newest snapshot", place,
            spare.hello.address());
    Take(place, spare.link, spare.hello, now);
  }
}

bool Cluster::AllAtLeast(State state) const {
  return std::all_of(places_.begin() + 1, places_.end(),
                     [state](const Place& p) { return p.state >= state; });
}

bool Cluster::complete() const {
  MutexLock lock(&mu_);
  return AllAtLeast(State::kReady);
}

bool Cluster::live() const {
  MutexLock lock(&mu_);
  return AllAtLeast(State::kLive);
}

std::string Cluster::Missing() const {
  MutexLock lock(&mu_);
  std::vector<std::string> missing;
  for (uint32_t i = 1; i < places_.size(); ++i) {
    if (places_[i].state == State::kAwaited) missing.push_back(absl::StrCat("server ", i, " is not there"));
    if (places_[i].state == State::kAssigned)
      missing.push_back(absl::StrCat("server ", i, " restores its state"));
    if (places_[i].state == State::kReady) missing.push_back(absl::StrCat("server ", i, " waits for others"));
  }
  return absl::StrJoin(missing, ", ");
}

uint64_t Cluster::highest_epoch() const {
  MutexLock lock(&mu_);
  uint64_t highest = 0;
  for (const Place& place : places_) highest = std::max(highest, place.ready.cluster_epoch());
  return highest;
}

uint64_t Cluster::highest_frontier() const {
  MutexLock lock(&mu_);
  uint64_t highest = 0;
  for (const Place& place : places_) highest = std::max(highest, place.ready.frontier_step());
  return highest;
}

void Cluster::BeginEpoch(uint64_t epoch) {
  MutexLock lock(&mu_);
  ServerCommand begin;
  begin.mutable_begin()->set_cluster_epoch(epoch);
  for (uint32_t i = 1; i < places_.size(); ++i) {
    Place& place = places_[i];
    if (place.state == State::kReady) {
      for (const auto& [step, closing] : place.closings) {
        ServerCommand close;
        close.set_close(closing);
        place.link->Send(close);
      }
      if (frontier_) {
        ServerCommand frontier;
        *frontier.mutable_frontier() = *frontier_;
        place.link->Send(frontier);
      }
      ServerCommand hurry;
      hurry.set_hurry(hurry_);
      place.link->Send(hurry);
      place.state = State::kLive;
    }
    if (place.link != nullptr) place.link->Send(begin);
  }
}

bool Cluster::all_have_values() const {
  MutexLock lock(&mu_);
  return std::all_of(places_.begin() + 1, places_.end(),
                     [](const Place& p) { return p.state >= State::kReady && p.ready.has_values(); });
}

bool Cluster::needs_snapshot() const {
  MutexLock lock(&mu_);
  return std::any_of(places_.begin() + 1, places_.end(), [](const Place& p) {
    return p.state >= State::kReady && p.ready.has_values() && p.ready.needs_snapshot();
  });
}

void Cluster::Broadcast(const ServerCommand& command) {
  for (const Place& place : places_) {
    if (place.state == State::kLive) place.link->Send(command);
  }
}

void Cluster::Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) {
  ServerCommand command;
  command.mutable_admit()->set_worker(worker.value());
  command.mutable_admit()->set_incarnation(incarnation.value());
  command.mutable_admit()->set_next_step(next_step);
  MutexLock lock(&mu_);
  Broadcast(command);
}

void Cluster::Expel(WorkerId worker) {
  ServerCommand command;
  command.mutable_expel()->set_worker(worker.value());
  MutexLock lock(&mu_);
  Broadcast(command);
}

void Cluster::AwaitInitialValues(WorkerId worker) {
  ServerCommand command;
  command.mutable_await_initial_values()->set_worker(worker.value());
  MutexLock lock(&mu_);
  command.mutable_await_initial_values()->set_round(++initial_values_round_);
  for (Place& place : places_) place.ready.set_has_values(false);
  if (generation_ != 0) snapshot_failure_.Update(absl::AbortedError("initial values are asked for anew"));
  Broadcast(command);
}

void Cluster::OnClosing(uint32_t server, const StepClosing& closing) {
  ServerCommand command;
  command.set_close(EncodeClosing(closing));
  MutexLock lock(&mu_);
  Place& place = places_[server];
  place.closings.emplace(closing.step, command.close());
  if (place.state == State::kLive) place.link->Send(command);
}

void Cluster::OnFrontier(uint64_t frontier, bool anyone_active) {
  ServerCommand command;
  command.mutable_frontier()->set_step(frontier);
  command.mutable_frontier()->set_anyone_active(anyone_active);
  MutexLock lock(&mu_);
  frontier_ = command.frontier();
  Broadcast(command);
}

absl::Status Cluster::BeginSnapshot(uint64_t generation) {
  MutexLock lock(&mu_);
  if (!AllAtLeast(State::kLive)) {
    return absl::UnavailableError("a snapshot needs all servers, and one is not there");
  }
  if (!std::all_of(places_.begin() + 1, places_.end(), [](const Place& p) { return p.ready.has_values(); })) {
    return absl::FailedPreconditionError("no snapshot: not all servers have parameters yet");
  }
  generation_ = generation;
  attempt_ = RandomNonZero();
  parts_.clear();
  snapshot_failure_ = absl::OkStatus();
  return absl::OkStatus();
}

void Cluster::SendCut(bool background) {
  ServerCommand command;
  MutexLock lock(&mu_);
  command.mutable_cut()->set_generation(generation_);
  command.mutable_cut()->set_attempt(attempt_);
  command.mutable_cut()->set_background(background);
  Broadcast(command);
}

absl::StatusOr<std::vector<SnapshotPart>> Cluster::CollectParts() {
  MutexLock lock(&mu_);
  mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return !snapshot_failure_.ok() || parts_.size() + 1 == places_.size();
  });
  RECON_RETURN_IF_ERROR(snapshot_failure_);
  std::vector<SnapshotPart> parts;
  for (auto& [place, part] : parts_) {
    if (!part.error().empty()) {
      return absl::UnavailableError(absl::StrCat("server ", place, ": ", part.error()));
    }
    part.mutable_server()->set_id(places_[place].id);
    parts.push_back(std::move(part));
  }
  return parts;
}

absl::Status Cluster::EndSnapshot() {
  MutexLock lock(&mu_);
  generation_ = 0;
  return snapshot_failure_;
}

void Cluster::NotePublished() {
  ServerCommand command;
  MutexLock lock(&mu_);
  command.set_published(attempt_);
  for (Place& place : places_) {
    if (place.state == State::kLive) place.ready.set_needs_snapshot(false);
  }
  Broadcast(command);
}

void Cluster::TellOfTrace(uint64_t trace, absl::Duration left) {
  ServerCommand command;
  command.mutable_trace()->set_trace(trace);
  command.mutable_trace()->set_left_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(left)));
  MutexLock lock(&mu_);
  Broadcast(command);
}

void Cluster::Hurry(int change) {
  ServerCommand command;
  MutexLock lock(&mu_);
  hurry_ += change;
  command.set_hurry(hurry_);
  Broadcast(command);
}

double Cluster::replay_seconds() const {
  MutexLock lock(&mu_);
  double longest = 0;
  for (const Place& place : places_) longest = std::max(longest, place.progress.replay_seconds());
  return longest;
}

bool Cluster::log_wants_snapshot() const {
  MutexLock lock(&mu_);
  return std::any_of(places_.begin(), places_.end(),
                     [](const Place& place) { return place.progress.log_wants_snapshot(); });
}

bool Cluster::Drain(absl::Duration timeout) {
  ServerCommand command;
  command.mutable_drain();
  MutexLock lock(&mu_);
  Broadcast(command);
  return mu_.AwaitFor(timeout, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return std::all_of(places_.begin() + 1, places_.end(),
                       [](const Place& p) { return p.drained || p.state < State::kLive; });
  });
}

void Cluster::Shutdown() {
  ServerCommand command;
  command.mutable_shutdown();
  MutexLock lock(&mu_);
  for (const Place& place : places_) {
    if (place.link != nullptr) place.link->Send(command);
  }
  for (const Spare& spare : spares_) spare.link->Send(command);
}

std::vector<ServerAddress> Cluster::Addresses() const {
  MutexLock lock(&mu_);
  std::vector<ServerAddress> addresses;
  for (auto it = places_.begin() + 1; it != places_.end(); ++it) {
    ServerAddress& address = addresses.emplace_back();
    address.set_address(it->hello.address());
    address.set_shared_memory(it->hello.shared_memory());
    address.set_ucx_address(it->hello.ucx_address());
  }
  return addresses;
}

std::vector<ServerStatus> Cluster::Status(absl::Time now) const {
  const auto layout = params_->layout();
  std::vector<ServerStatus> servers;
  MutexLock lock(&mu_);
  for (uint32_t i = 1; i < places_.size(); ++i) {
    const Place& place = places_[i];
    ServerStatus& out = servers.emplace_back();
    out.set_server(i);
    out.set_state(place.state == State::kAwaited    ? SERVER_AWAITED
                  : place.state == State::kAssigned ? SERVER_RECOVERING
                                                    : SERVER_READY);
    out.set_address(place.hello.address());
    out.set_pushes(place.progress.pushes());
    out.set_recover_ms(place.progress.recover_ms());
    out.set_heard_ms(absl::ToDoubleMilliseconds(now - place.last_heard));
    if (layout == nullptr) continue;
    const std::vector<uint32_t> server_of_shard =
        AssignShards(*layout, static_cast<uint32_t>(places_.size()));
    for (uint32_t shard = 0; shard < server_of_shard.size(); ++shard) {
      if (server_of_shard[shard] != i) continue;
      out.set_shards(out.shards() + 1);
      out.set_parameters(out.parameters() + layout->shards()[shard].size);
    }
  }
  return servers;
}

}  // namespace recon
