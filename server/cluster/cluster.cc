#include "server/cluster/cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/tensor/shard_assignment.h"
#include "server/cluster/report_checks.h"

namespace recon {
namespace {

std::string WithoutWhat(const ServerLinks::Gap& gap) {
  if (!gap.unsaved) return "from the newest snapshot";
  return absl::StrCat("from the newest snapshot, without what its log has beyond that: ", *gap.unsaved,
                      " records when it was last heard, and what came since");
}

}  // namespace

Cluster::Cluster(const Options& options, const ServerTable& table)
    : options_(options),
      assignment_(options.assignment),
      servers_(options.assignment.servers()),
      snapshot_(&links_),
      workers_state_(&links_),
      links_(servers_,
             [this](uint32_t place) {
               snapshot_.GiveUp(absl::UnavailableError(absl::StrCat("server ", place, " has gone")));
             }),
      table_(servers_, table) {}

void Cluster::SetWayBack(const WayBack& way) {
  assignment_.set_go_back_generation(way.generation);
  assignment_.set_go_back_first_step(way.first_step);
  assignment_.set_count_beyond(way.count_beyond);
}

ServersState Cluster::state() const {
  ServersState state = links_.state();
  MutexLock lock(&mu_);
  state.mixed_state = mixed_state_;
  return state;
}

void Cluster::NoteMixedState(const std::string& mixed_state) {
  MutexLock lock(&mu_);
  mixed_state_ = mixed_state;
}

void Cluster::Start(ParamServer* params, Lane* lane, Events events) {
  params_ = params;
  lane_ = lane;
  events_ = std::move(events);
  links_.Start(Now());
}

void Cluster::OnReport(const std::shared_ptr<ServerLink>& link, const ServerReport& report) {
  const absl::Time now = Now();
  {
    MutexLock lock(&mu_);
    table_.HearOfSpare(link.get(), now);
  }
  const absl::StatusOr<uint32_t> place = links_.Note(link.get(), report, now);
  if (!place.ok()) return SendAway(link, place.status());
  if (report.has_hello()) {
    lane_->Post([this, link, hello = report.hello()] { Join(link, hello, Now()); });
    return;
  }
  if (report.has_leaving()) {
    OnClosed(link);
    return link->Close(absl::UnavailableError("it ends, as it has said"));
  }
  if (*place == 0) return;  // A spare, or one whose place is another's by now.
  if (const absl::Status heard = Hear(link, *place, report); !heard.ok()) SendAway(link, heard);
}

absl::Status Cluster::Hear(const std::shared_ptr<ServerLink>& link, uint32_t place,
                           const ServerReport& report) {
  if (report.has_delivered()) {
    const PushDelivered& push = report.delivered();
    {
      MutexLock lock(&mu_);
      RECON_RETURN_IF_ERROR(CheckDelivered(push, place, server_of_shard_));
    }
    params_->peers()->NoteDelivered(WorkerId(push.worker()), Incarnation(push.incarnation()), push.step(),
                                    {push.shards().begin(), push.shards().end()}, push.push_parts());
  } else if (report.has_part()) {
    {
      MutexLock lock(&mu_);
      RECON_RETURN_IF_ERROR(CheckPart(report.part(), place, server_of_shard_));
    }
    snapshot_.Note(place, report.part());
  } else if (report.has_ready()) {
    RECON_RETURN_IF_ERROR(CheckReady(report.ready()));
    lane_->Post([this, link, ready = report.ready()] { OnReady(link, ready); });
  } else if (report.has_initial_values()) {
    lane_->Post([this, link, round = report.initial_values().round()] { OnInitialValues(link, round); });
  } else if (report.has_staged()) {
    workers_state_.Note(place, report.staged());
  }
  return absl::OkStatus();
}

void Cluster::SendAway(const std::shared_ptr<ServerLink>& link, const absl::Status& why) {
  LogWarn("a server is sent away: {}", why.message());
  OnClosed(link);
  link->Close(why);
}

void Cluster::Join(const std::shared_ptr<ServerLink>& link, const ServerHello& hello, absl::Time now) {
  RECON_CHECK(lane_->IsCurrent());
  if (const absl::Status checked = CheckHello(hello, options_.assignment.job_id()); !checked.ok()) {
    return SendAway(link, checked);
  }
  uint32_t place = 0;
  bool known = links_.PlaceOf(link.get()) != 0;
  bool had_place = false;
  {
    MutexLock lock(&mu_);
    known = known || table_.IsSpare(link.get());
    place = table_.PlaceFor(hello);
    had_place = hello.servers() == servers_;
    if (!known && place == 0 && !had_place) table_.AddSpare(link, hello, now);
  }
  if (known) return SendAway(link, absl::InvalidArgumentError("a server says twice who it is"));
  if (place != 0) return Take(place, link, hello, now);
  if (had_place) {
    // Not to be taken for a spare: somebody may want what it has.
    LogWarn("server {} is sent away: its data is that of place {}, which is another server's by now",
            hello.address(), hello.server());
    return link->Close(absl::FailedPreconditionError(
        absl::StrCat("its place ", hello.server(),
                     " is another server's by now; to use it as a new server, give "
                     "it an empty --data")));
  }
  LogInfo("server {} waits: all {} places are taken{}", hello.address(), servers(), OutlookForSpare(now));
}

std::map<uint32_t, std::string> Cluster::Outlooks(absl::Time now) const {
  const std::vector<ServerLinks::Gap> gaps = links_.Gaps();
  std::map<uint32_t, std::string> outlooks;
  MutexLock lock(&mu_);
  // Each takes one place.
  for (size_t i = 0; i < std::min(gaps.size(), table_.spares().size()); ++i) {
    const absl::Duration left = std::max(absl::ZeroDuration(), gaps[i].since + options_.replace_after - now);
    outlooks[gaps[i].place] =
        absl::StrCat(table_.spares()[i].hello.address(), " takes the place of server ", gaps[i].place, " in ",
                     absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))), ", ", WithoutWhat(gaps[i]));
  }
  return outlooks;
}

std::string Cluster::OutlookForSpare(absl::Time now) const {
  const std::map<uint32_t, std::string> outlooks = Outlooks(now);
  if (outlooks.empty()) return ", and their servers are there";
  std::vector<std::string> said;
  for (const auto& [place, outlook] : outlooks) said.push_back(outlook);
  return absl::StrCat("; unless their servers come back, ", absl::StrJoin(said, "; "));
}

std::string Cluster::Missing() const {
  const absl::Time now = Now();
  std::string missing = links_.Missing(now);
  for (const auto& [place, outlook] : Outlooks(now)) absl::StrAppend(&missing, "; ", outlook);
  return missing;
}

void Cluster::Take(uint32_t place, const std::shared_ptr<ServerLink>& link, const ServerHello& hello,
                   absl::Time now) {
  ServerTable table;
  std::optional<ModelSpec> model;
  {
    MutexLock lock(&mu_);
    table = table_.Given(place, hello.server_id());
    model = model_;
  }
  if (const absl::Status saved = events_.save(table); !saved.ok()) {
    return link->Close(absl::UnavailableError(saved.message()));
  }
  {
    MutexLock lock(&mu_);
    table_.Give(place, hello.server_id());
  }
  const std::string previous = links_.Hellos()[place - 1].address();
  const std::shared_ptr<ServerLink> before = links_.Connect(place, link, hello, now);
  if (model) {
    Assignment assignment = assignment_;
    *assignment.mutable_model() = *model;
    links_.Assign(place, assignment);
  }
  if (before != nullptr) {
    if (previous != hello.address()) {
      LogWarn(
          "server {} takes place {} of the one at {}, which has not gone: if both run, one has a copy of the "
          "other's --data",
          hello.address(), place, previous);
    }
    before->Close(absl::UnavailableError("it has come again on another connection"));
  }
  if (!Resumes(hello, place, servers_)) params_->peers()->ForgetDeliveriesTo(place);
  LogInfo("server {} has place {} of {}", hello.address(), place, servers());
}

void Cluster::SetModel(const ModelSpec& model) {
  const auto layout = params_->layout();
  RECON_CHECK(layout != nullptr, "servers are told of a model that the parameters do not have");
  {
    MutexLock lock(&mu_);
    if (model_) return;
    model_ = model;
    server_of_shard_ = AssignShards(*layout, servers_);
  }
  Assignment assignment = assignment_;
  *assignment.mutable_model() = model;
  links_.AssignAll(assignment);
}

void Cluster::OnReady(const std::shared_ptr<ServerLink>& link, const ServerReady& ready) {
  if (links_.NoteReady(link.get(), ready)) events_.changed();
}

void Cluster::OnInitialValues(const std::shared_ptr<ServerLink>& link, uint64_t round) {
  if (links_.NoteValues(link.get(), round)) events_.changed();
}

void Cluster::OnClosed(const std::shared_ptr<ServerLink>& link) {
  {
    MutexLock lock(&mu_);
    table_.DropSpare(link.get());
  }
  const absl::Time now = Now();
  const ServerLinks::Dropped dropped = links_.Drop(link.get(), now);
  if (dropped.place == 0) return;
  const std::string server = absl::StrCat("server ", dropped.place, " at ", dropped.address);
  if (shut_down_.load()) return LogInfo("{} has ended with the job", server);
  if (ends_.load()) return;
  std::string outlook = Outlooks(now)[dropped.place];
  if (outlook.empty()) {
    outlook = absl::StrCat("after ", absl::FormatDuration(options_.replace_after),
                           " another one with --join and an empty --data may take its place");
  }
  if (!dropped.stopped_why.empty()) {
    return LogInfo("{} was stopped in good order ({}): pushes wait until it is back; {}", server,
                   dropped.stopped_why, outlook);
  }
  LogWarn("{} has gone without a word: pushes wait until it is back; {}", server, outlook);
}

void Cluster::Tick(absl::Time now) {
  std::vector<std::shared_ptr<ServerLink>> silent = links_.Silent(now, options_.silence_max);
  std::vector<std::pair<ServerLinks::Gap, PlaceTable::Spare>> replacements;
  const std::vector<ServerLinks::Gap> gaps = links_.Gaps();
  {
    MutexLock lock(&mu_);
    for (auto& link : table_.SilentSpares(now, options_.silence_max)) silent.push_back(std::move(link));
    for (const ServerLinks::Gap& gap : gaps) {
      if (now - gap.since <= options_.replace_after) continue;
      auto spare = table_.TakeSpare(now, options_.silence_max);
      if (spare) replacements.emplace_back(gap, *std::move(spare));
    }
  }
  for (const auto& link : silent) {
    OnClosed(link);
    link->Close(absl::UnavailableError("it was silent for too long"));
  }
  for (auto& [gap, spare] : replacements) {
    LogWarn("server {} does not come back: {} takes its place, {}", gap.place, spare.hello.address(),
            WithoutWhat(gap));
    Take(gap.place, spare.link, spare.hello, now);
  }
}

void Cluster::Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) {
  ServerCommand command;
  command.mutable_admit()->set_worker(worker.value());
  command.mutable_admit()->set_incarnation(incarnation.value());
  command.mutable_admit()->set_next_step(next_step);
  links_.Broadcast(command);
}

void Cluster::Expel(WorkerId worker) {
  ServerCommand command;
  command.mutable_expel()->set_worker(worker.value());
  links_.Broadcast(command);
}

void Cluster::AwaitInitialValues(WorkerId worker) {
  links_.AwaitInitialValues(worker);
  snapshot_.GiveUp(absl::AbortedError("initial values are asked for anew"));
}

void Cluster::OnClosing(uint32_t server, const StepClosing& closing) {
  links_.Close(server, closing.step, EncodeClosing(closing));
}

void Cluster::OnFrontier(uint64_t frontier, bool anyone_active) {
  Frontier moved;
  moved.set_step(frontier);
  moved.set_anyone_active(anyone_active);
  links_.MoveFrontier(moved);
}

void Cluster::TellOfTrace(uint64_t trace, absl::Duration left) {
  ServerCommand command;
  command.mutable_trace()->set_trace(trace);
  command.mutable_trace()->set_left_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(left)));
  links_.Broadcast(command);
}

void Cluster::End(bool servers_too) {
  ends_.store(true);
  if (!servers_too) return;
  shut_down_.store(true);
  ServerCommand command;
  command.mutable_shutdown();
  links_.SendToAll(command);
  SendToSpares(command);
}

void Cluster::TellWaits(const std::string& waits_for) {
  ServerCommand command;
  command.mutable_waits()->set_waits_for(waits_for);
  links_.SendToAll(command);
  SendToSpares(command);
}

void Cluster::SendToSpares(const ServerCommand& command) const {
  std::vector<PlaceTable::Spare> spares;
  {
    MutexLock lock(&mu_);
    spares = table_.spares();
  }
  for (const PlaceTable::Spare& spare : spares) spare.link->Send(command);
}

std::vector<ServerAddress> Cluster::Addresses() const {
  std::vector<ServerAddress> addresses;
  for (const ServerHello& hello : links_.Hellos()) {
    ServerAddress& address = addresses.emplace_back();
    address.set_address(hello.address());
    address.set_shared_memory(hello.shared_memory());
    address.set_ucx_address(hello.ucx_address());
  }
  return addresses;
}

std::vector<ServerStatus> Cluster::Status(absl::Time now) const {
  const auto layout = params_->layout();
  std::vector<ServerStatus> servers = links_.Status(now);
  MutexLock lock(&mu_);
  for (uint32_t shard = 0; shard < server_of_shard_.size(); ++shard) {
    if (server_of_shard_[shard] == 0) continue;
    ServerStatus& out = servers[server_of_shard_[shard] - 1];
    out.set_shards(out.shards() + 1);
    out.set_parameters(out.parameters() + layout->shards()[shard].size);
  }
  return servers;
}

}  // namespace recon
