#include "tests/server/control/control_program.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace recon {
namespace {

constexpr uint64_t kTrainSamples = 40;
constexpr uint64_t kTestSamples = 10;
constexpr uint32_t kDataEpochs = 3;
// Where steps have come this far, they go on by themselves.
constexpr uint64_t kStepsSaid = uint64_t{1} << 40;
constexpr absl::Duration kTick = absl::Milliseconds(500);
// Far beyond what a status of four workers has.
constexpr size_t kStatusBytesMax = 1 << 20;
// Ticks in which a worker alone finishes what is left, with leases of 10 s that clients have taken with them,
// and with patience for clients that said that they wait.
constexpr int kTicksToFinish = 4000;

ModelSpec TheModel() {
  ModelSpec model;
  model.set_name("model");
  TensorSpec* tensor = model.add_tensors();
  tensor->set_name("weights");
  tensor->add_shape(4);
  return model;
}

const char* const kPolicies[] = {"asp", "bsp", "ssp:2", "local", "diloco", "auto", "local:3", "ssp:x", ""};

}  // namespace

ControlProgram::ControlProgram(const uint8_t* data, size_t size) : choices_(data, size) {
  JobConfig& job = options_.job;
  job.set_seed(7);
  job.set_batch_samples(5);
  job.set_data_epochs(kDataEpochs);
  job.set_split_samples(10);
  job.set_eval_split_samples(10);
  job.set_bound(static_cast<int32_t>(choices_.Of(4)) - 1);
  job.set_workers_min(1);
  job.set_lease_duration_ms(10'000);
  options_.timeouts = {absl::Seconds(1), absl::Seconds(3)};
  options_.policy_base.batch_samples = 5;
  options_.lease_target = choices_.Yes() ? absl::Seconds(1) : absl::ZeroDuration();
  options_.connected = &connected_;
  worker_.name = "worker";
  worker_.incarnation = 1;
  for (uint64_t number = 0; number < 3; ++number) {
    clients_.push_back({absl::StrCat("client", number), 100 + number, {}, {}});
  }
  connected_.Opened(Incarnation(worker_.incarnation));
}

void ControlProgram::Start() {
  coordinator_.reset();
  data_plane_ = FakeDataPlane();
  CoordinatorPorts ports;
  ports.params = &data_plane_;
  ports.steps = &data_plane_;
  ports.snapshots = &snapshots_;
  ports.journal = &journal_;
  coordinator_ = std::make_unique<Coordinator>(options_, ports, &metrics_);
}

void ControlProgram::Restart() {
  if (!disk_is_well()) return;
  ++counts_.restarts;
  options_.cluster_epoch = ++journal_.epoch;
  // What is under way ends with the process.
  const SnapshotStatus published = snapshots_.status();
  snapshots_ = FakeSnapshots();
  snapshots_.the_status = published;
  given_.clear();
  must_push_.clear();
  Start();
  if (published.generation() > 0) data_plane_.BringValues();
  const absl::Status recovered = coordinator_->Recover(std::nullopt);
  if (!recovered.ok()) Fail(absl::StrCat("the job is not taken up again: ", recovered.message()));
  coordinator_->NoteServing(now_);
}

std::string ControlProgram::Run() {
  Start();
  coordinator_->NoteServing(now_);
  Join();
  while (!choices_.empty() && violated_.empty()) {
    Step();
    Check();
  }
  journal_.fails = absl::OkStatus();
  data_plane_.change_fails = absl::OkStatus();
  if (violated_.empty()) FinishJob();
  return violated_;
}

void ControlProgram::Step() {
  ++counts_.calls;
  switch (choices_.Of(16)) {
    case 0:
      return PassTime();
    case 1:
      return Work();
    case 2:
      if (!snapshots_.under_way().empty())
        choices_.Of(4) > 0 ? snapshots_.Publish(now_) : snapshots_.Fail(now_);
      return;
    case 3:
      if (choices_.Of(8) == 0) return Restart();
      journal_.fails = choices_.Of(8) == 0 ? absl::UnavailableError("the disk is away") : absl::OkStatus();
      return;
    case 4:
      return choices_.Of(2) == 0 ? SetPolicy() : Work();
    default:
      return CallOf(&clients_[choices_.Of(static_cast<uint32_t>(clients_.size()))]);
  }
}

void ControlProgram::PassTime() {
  for (uint32_t ticks = choices_.Of(choices_.Of(4) == 0 ? 30 : 2) + 1; ticks > 0; --ticks) {
    now_ += kTick;
    coordinator_->Tick(now_);
    Beat();
  }
}

// Identities are bound to connections before a call comes here; incarnations that are secret stay so.
WorkerIdentity ControlProgram::IdentityFor(const Client& client) {
  WorkerIdentity identity = client.identity;
  if (choices_.Of(8) == 0) identity.set_worker(choices_.Of(6));
  // Whoever looks learns of a new one.
  if (choices_.Of(4) > 0) identity.set_cluster_epoch(worker_.identity.cluster_epoch());
  if (choices_.Of(16) == 0) identity.set_cluster_epoch(choices_.Number());
  return identity;
}

Lease ControlProgram::AnyLease(const Client& client) {
  if (!client.leases.empty() && choices_.Of(4) > 0) {
    const auto size = static_cast<uint32_t>(client.leases.size());
    return client.leases[choices_.Of(4) > 0 ? size - 1 : choices_.Of(size)];
  }
  if (!worker_.leases.empty() && choices_.Yes()) return worker_.leases.front();
  Lease lease;
  lease.set_lease(choices_.Number());
  // Mostly one that there may be.
  lease.set_kind(static_cast<LeaseKind>(choices_.Of(3)));
  lease.set_data_epoch(choices_.Of(8) > 0 ? choices_.Of(4) : choices_.Number32());
  lease.set_split(choices_.Of(8) > 0 ? choices_.Of(5) : choices_.Number32());
  lease.set_splits(choices_.Of(8) > 0 ? choices_.Of(5) : choices_.Number32());
  lease.set_begin(choices_.Number());
  lease.set_end(choices_.Number());
  return lease;
}

void ControlProgram::Note(Client* client, const WorkerIdentity& identity, const Lease& lease) {
  if (lease.lease() == 0) return;
  must_push_.insert(lease.lease());
  if (client != &worker_) ++counts_.granted_to_clients;
  client->leases.push_back(lease);
  given_[lease.lease()] = {identity.worker(), identity.incarnation()};
}

// What was pushed for a lease that the server before this one gave, it does not know; nor for one that has
// ended.
void ControlProgram::NoteAdopted(Client* client, const Lease& lease) {
  Note(client, client->identity, lease);
  must_push_.erase(lease.lease());
}

void ControlProgram::CallOf(Client* client) {
  switch (choices_.Of(10)) {
    case 0:
      return RegisterAs(client);
    case 1:
      return HeartbeatOf(client);
    case 2:
    case 3:
      return AcquireFor(client);
    case 4:
    case 8:
      return CompleteFor(client);
    case 5:
    case 9:
      return PushOf(*client);
    case 6: {
      RejoinRequest request;
      *request.mutable_identity() = IdentityFor(*client);
      request.set_next_step(AnyStep());
      (void)coordinator_->Rejoin(request, now_);
      return;
    }
    default:
      return LeaveOf(client);
  }
}

void ControlProgram::RegisterAs(Client* client) {
  RegisterRequest request;
  // Any bytes that are a message, now and then.
  if (choices_.Of(8) == 0) (void)request.ParseFromString(choices_.Bytes(200));
  const uint32_t name = choices_.Of(8);
  request.set_name(name == 0 ? worker_.name : name == 1 ? choices_.Bytes(300) : client->name);
  request.set_name_is_drawn(choices_.Of(4) == 0);
  if (choices_.Of(4) == 0) client->incarnation += 10;
  request.set_incarnation(client->incarnation);
  if (choices_.Of(8) > 0) {
    *request.mutable_model() = TheModel();
    request.set_train_samples(kTrainSamples);
    request.set_test_samples(kTestSamples);
  } else {
    TensorSpec* tensor = request.mutable_model()->add_tensors();
    tensor->set_name(choices_.Bytes(8));
    tensor->add_shape(choices_.Number());
    tensor->add_shape(choices_.Number());
    request.set_train_samples(choices_.Number());
  }
  request.set_next_step(AnyStep());
  request.set_first_new_step(AnyStep());
  request.set_history(choices_.Of(4) == 0 ? choices_.Number() : 0);
  for (uint32_t held = choices_.Of(4); held > 0; --held) *request.add_held() = AnyLease(*client);
  if (choices_.Of(8) == 0) {
    FlagValue* flag = request.add_proposed();
    flag->set_name(choices_.Bytes(8));
    flag->set_value(choices_.Bytes(8));
  }
  const absl::StatusOr<RegisterReply> reply = coordinator_->Register(request, now_, "there");
  if (!reply.ok()) return;
  if (request.name() == worker_.name) Fail("a client took the name of a worker that is there");
  client->name = request.name();
  client->identity.set_worker(reply->worker());
  client->identity.set_incarnation(request.incarnation());
  client->identity.set_cluster_epoch(reply->cluster_epoch());
  client->leases.clear();
  for (const Lease& lease : reply->adopted()) NoteAdopted(client, lease);
}

void ControlProgram::HeartbeatOf(Client* client) {
  HeartbeatRequest request;
  if (choices_.Yes()) (void)request.mutable_progress()->ParseFromString(choices_.Bytes(200));
  WorkerProgress& progress = *request.mutable_progress();
  if (choices_.Yes()) progress.set_batches(choices_.Number());
  if (choices_.Yes()) progress.set_steps(choices_.Number());
  if (choices_.Yes()) progress.set_waiting(true);
  if (choices_.Of(4) == 0) progress.set_samples_per_second(choices_.Real());
  if (choices_.Of(4) == 0) progress.set_batch_seconds(choices_.Real());
  if (choices_.Of(4) == 0) progress.set_last_loss(choices_.Real());
  if (choices_.Of(4) == 0) progress.mutable_step_work()->set_automatic(true);
  *request.mutable_identity() = IdentityFor(*client);
  request.set_next_step(AnyStep());
  for (uint32_t leases = choices_.Of(5); leases > 0; --leases) request.add_leases(AnyLease(*client).lease());
  (void)coordinator_->Heartbeat(request, {now_, now_});
}

void ControlProgram::AcquireFor(Client* client) {
  AcquireRequest request;
  *request.mutable_identity() = IdentityFor(*client);
  request.set_next_step(AnyStep());
  const absl::StatusOr<AcquireReply> reply = coordinator_->Acquire(request, now_);
  if (reply.ok()) Note(client, request.identity(), reply->lease());
}

// Frames are checked by the data plane: who is no member pushes nothing.
void ControlProgram::PushOf(const Client& client) {
  const WorkerId worker(client.identity.worker());
  const auto admitted = data_plane_.admitted.find(worker);
  if (admitted == data_plane_.admitted.end() || admitted->second.value() != client.incarnation) return;
  data_plane_.Push(worker);
}

void ControlProgram::CompleteFor(Client* client) {
  if (choices_.Of(4) > 0) PushOf(*client);
  CompleteRequest request;
  *request.mutable_identity() = IdentityFor(*client);
  const Lease lease = AnyLease(*client);
  request.set_lease(lease.lease());
  request.set_split(choices_.Of(8) == 0 ? choices_.Number32() : lease.split() + (choices_.Of(4) == 0));
  request.set_abandon(choices_.Of(8) == 0);
  request.set_without_push(choices_.Of(8) == 0);
  if (lease.kind() == LEASE_EVAL || choices_.Of(4) == 0) {
    EvalResult& eval = *request.mutable_eval();
    eval.set_samples(choices_.Of(8) == 0 ? choices_.Number() : lease.end() - lease.begin());
    eval.set_correct(choices_.Of(8) == 0 ? choices_.Number() : 0);
    eval.set_loss_sum(choices_.Real());
    if (choices_.Of(4) == 0) {
      MetricSum* metric = eval.add_metrics();
      metric->set_name(choices_.Bytes(100));
      metric->set_sum(choices_.Real());
      metric->set_weight(choices_.Real());
    }
  }
  Complete(client, request);
}

void ControlProgram::Complete(Client* client, const CompleteRequest& request) {
  const size_t before = journal_.completions.size();
  const absl::StatusOr<CompleteReply> reply = coordinator_->Complete(request, {now_, now_});
  if (journal_.completions.size() == before) return;
  if (client != &worker_) ++counts_.completed_by_clients;
  const auto found = given_.find(request.lease());
  const std::pair<uint32_t, uint64_t> sender(request.identity().worker(), request.identity().incarnation());
  if (!reply.ok()) Fail(absl::StrCat("recorded, and answered by ", reply.status().message()));
  if (found == given_.end() || found->second != sender) {
    Fail(absl::StrCat("worker ", sender.first, " completed a split of lease ", request.lease(),
                      ", which it was not given"));
  }
  for (const Lease& lease : client->leases) {
    if (lease.lease() != request.lease() || lease.kind() != LEASE_TRAIN || request.without_push()) continue;
    if (must_push_.count(lease.lease()) == 0) continue;
    if (data_plane_.PushesOf(WorkerId(sender.first)) == 0) {
      Fail(absl::StrCat("worker ", sender.first, " completed a split and has pushed nothing"));
    }
  }
}

void ControlProgram::LeaveOf(Client* client) {
  LeaveRequest request;
  *request.mutable_identity() = IdentityFor(*client);
  request.set_reason(choices_.Bytes(100));
  request.set_residual_norm(choices_.Real());
  if (choices_.Of(4) == 0) request.set_diverged(choices_.Bytes(100));
  (void)coordinator_->Leave(request, {now_, now_});
}

void ControlProgram::SetPolicy() {
  SetPolicyRequest request;
  PolicySettings& policy = *request.mutable_policy();
  if (choices_.Of(8) == 0) (void)policy.ParseFromString(choices_.Bytes(60));
  policy.set_sync(kPolicies[choices_.Of(std::size(kPolicies))]);
  if (choices_.Of(4) == 0) policy.set_quorum(choices_.Of(4));
  if (choices_.Of(4) == 0) policy.set_local_steps(choices_.Yes() ? choices_.Of(9) : choices_.Number32());
  if (choices_.Of(4) == 0) policy.set_fragments(choices_.Of(4));
  if (choices_.Of(8) == 0) policy.set_step_samples(choices_.Number());
  if (choices_.Of(8) == 0) policy.set_step_samples_constant(true);
  data_plane_.change_fails =
      choices_.Of(8) == 0 ? absl::UnavailableError("the log is away") : absl::OkStatus();
  if (coordinator_->SetPolicy(request, now_).ok()) ++counts_.policies;
  data_plane_.change_fails = absl::OkStatus();
}

void ControlProgram::Join() {
  RegisterRequest request;
  request.set_name(worker_.name);
  request.set_incarnation(worker_.incarnation);
  *request.mutable_model() = TheModel();
  request.set_train_samples(kTrainSamples);
  request.set_test_samples(kTestSamples);
  request.set_next_step(std::min(data_plane_.frontier(), kStepsSaid));
  request.mutable_held()->Add(worker_.leases.begin(), worker_.leases.end());
  const absl::StatusOr<RegisterReply> reply = coordinator_->Register(request, now_, "here");
  if (!reply.ok()) {
    if (disk_is_well()) Fail(absl::StrCat("the worker may not join: ", reply.status().ToString()));
    return;
  }
  worker_.identity.set_worker(reply->worker());
  worker_.identity.set_incarnation(worker_.incarnation);
  worker_.identity.set_cluster_epoch(reply->cluster_epoch());
  worker_.leases.clear();
  for (const Lease& lease : reply->adopted()) NoteAdopted(&worker_, lease);
}

void ControlProgram::Beat() {
  HeartbeatRequest request;
  *request.mutable_identity() = worker_.identity;
  for (const Lease& lease : worker_.leases) request.add_leases(lease.lease());
  const absl::StatusOr<HeartbeatReply> reply = coordinator_->Heartbeat(request, {now_, now_});
  if (reply.ok()) {
    for (const uint64_t lost : reply->lost()) {
      worker_.leases.erase(std::remove_if(worker_.leases.begin(), worker_.leases.end(),
                                          [lost](const Lease& lease) { return lease.lease() == lost; }),
                           worker_.leases.end());
    }
    return;
  }
  // After a restart, or where all have to begin anew.
  if (!absl::IsFailedPrecondition(reply.status())) {
    return Fail(absl::StrCat("the worker's heartbeat: ", reply.status().ToString()));
  }
  Join();
}

// Does its leases, and takes another.
void ControlProgram::Work() {
  Beat();
  for (const Lease& lease : std::exchange(worker_.leases, {})) {
    for (uint32_t split = 0; split < std::max(1u, lease.splits()); ++split) {
      CompleteRequest request;
      *request.mutable_identity() = worker_.identity;
      request.set_lease(lease.lease());
      request.set_split(lease.split() + split);
      if (lease.kind() == LEASE_EVAL) {
        request.mutable_eval()->set_samples(lease.end() - lease.begin());
        request.mutable_eval()->set_loss_sum(1);
      } else {
        data_plane_.Push(WorkerId(worker_.identity.worker()));
      }
      Complete(&worker_, request);
    }
  }
  AcquireRequest request;
  *request.mutable_identity() = worker_.identity;
  const absl::StatusOr<AcquireReply> reply = coordinator_->Acquire(request, now_);
  if (!reply.ok()) return;
  Note(&worker_, worker_.identity, reply->lease());
  if (reply->needs_initial_values()) data_plane_.BringValues();
}

void ControlProgram::Check() {
  const absl::StatusOr<StatusReply> status = coordinator_->Status(now_);
  if (!status.ok()) return Fail(absl::StrCat("status: ", status.status().ToString()));
  if (status->ByteSizeLong() > kStatusBytesMax)
    Fail(absl::StrCat("a status of ", status->ByteSizeLong(), " bytes"));
  uint64_t samples = 0;
  for (const auto& [key, completion] : journal_.completions) {
    if (completion.kind() == LEASE_TRAIN) samples += completion.end() - completion.begin();
  }
  if (status->samples_completed() != samples) {
    Fail(absl::StrCat("status counts ", status->samples_completed(), " samples, the journal ", samples));
  }
  if (disk_is_well()) Beat();
  if (coordinator_->finished()) CheckFinished();
}

void ControlProgram::CheckFinished() {
  uint64_t trained = 0, evaluated = 0;
  for (const auto& [key, completion] : journal_.completions) {
    (completion.kind() == LEASE_TRAIN ? trained : evaluated) += completion.end() - completion.begin();
  }
  if (trained != kDataEpochs * kTrainSamples || evaluated != kDataEpochs * kTestSamples) {
    Fail(absl::StrCat("the job is finished with ", trained, " training and ", evaluated, " test samples"));
  }
}

void ControlProgram::FinishJob() {
  for (int ticks = 0; ticks < kTicksToFinish && violated_.empty(); ++ticks) {
    if (!snapshots_.under_way().empty()) snapshots_.Publish(now_);
    Work();
    if (coordinator_->finished()) return CheckFinished();
    now_ += kTick;
    coordinator_->Tick(now_);
  }
  if (violated_.empty())
    Fail(absl::StrCat("the job does not end: ", coordinator_->Status(now_)->ShortDebugString()));
}

}  // namespace recon
