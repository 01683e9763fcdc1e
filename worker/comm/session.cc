#include "worker/comm/session.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/away_words.h"
#include "common/base/check.h"
#include "common/base/clipped_text.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/retry_hint.h"
#include "common/base/status_macros.h"
#include "google/protobuf/util/message_differencer.h"
#include "worker/comm/head_checks.h"

namespace recon {
namespace {

// Window over which throughput is measured.
constexpr absl::Duration kRateWindow = absl::Seconds(3);
// Two that ask in turn would be news with each heartbeat.
constexpr absl::Duration kRivalToldEvery = absl::Minutes(1);

bool ServerGone(const absl::Status& status) {
  // gRPC says Unknown or Internal of a stream that breaks at the wrong moment; the server itself never does.
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status) ||
         absl::IsUnknown(status) || absl::IsInternal(status);
}

}  // namespace

Session::Session(const Options& options, WorkerCalls* client, const std::atomic<bool>* stop)
    : options_(options),
      client_(client),
      stop_(stop),
      incarnation_(options.incarnation),
      name_(options.name) {}

absl::StatusOr<std::unique_ptr<Session>> Session::Join(const Options& options, WorkerCalls* client,
                                                       const std::atomic<bool>* stop) {
  std::unique_ptr<Session> session(new Session(options, client, stop));
  RECON_RETURN_IF_ERROR(session->RegisterFirst());
  session->heartbeats_ = std::thread([raw = session.get()] { raw->HeartbeatLoop(); });
  return session;
}

Session::~Session() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (heartbeats_.joinable()) heartbeats_.join();
}

Session::Standing Session::standing() const {
  MutexLock lock(&mu_);
  return {identity_, registrations_};
}

std::shared_ptr<const JobConfig> Session::job() const {
  MutexLock lock(&mu_);
  return job_;
}

JobPhase Session::phase() const {
  MutexLock lock(&mu_);
  return phase_;
}

absl::Status Session::fatal() const {
  MutexLock lock(&mu_);
  return fatal_;
}

void Session::Fail(const absl::Status& status) {
  RECON_CHECK(!status.ok(), "a session fails without an error");
  {
    MutexLock lock(&mu_);
    fatal_.Update(status);
  }
  // Whoever sends something looks at fatal() afterwards: it is set before connections are cut.
  if (options_.on_failure) options_.on_failure();
}

bool Session::Pause(absl::Duration duration) {
  MutexLock lock(&mu_);
  return !mu_.AwaitFor(duration,
                       [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_ || !fatal_.ok(); });
}

RegisterRequest Session::MakeRequest() const {
  RegisterRequest request;
  request.set_name(name_);
  request.set_name_is_drawn(options_.draw_name != nullptr);
  request.set_incarnation(incarnation_.value());
  *request.mutable_model() = options_.model;
  request.set_train_samples(options_.train_samples);
  request.set_test_samples(options_.test_samples);
  request.set_data_fingerprint(options_.data_fingerprint);
  request.set_next_step(FirstUnacknowledged());
  request.set_first_new_step(FirstNew());
  if (job_ != nullptr) request.set_history(job_->history());
  for (const HeldLeasePtr& held : held_) {
    if (held->lost) continue;
    Lease* left = request.add_held();
    *left = held->task;
    left->set_split(held->task.split() + held->done);
    left->set_splits(std::max(1u, held->task.splits()) - held->done);
    // Its samples begin where the last completed split has ended.
    if (held->done > 0) left->set_begin(held->task.begin() + uint64_t{held->done} * job_->split_samples());
  }
  request.set_device(options_.device);
  request.set_codec(options_.codec);
  request.set_simulated(options_.simulated);
  request.set_serves_parameters(options_.serves);
  request.mutable_proposed()->Add(options_.proposed.begin(), options_.proposed.end());
  *request.mutable_state() = state_report_;
  return request;
}

void Session::AdoptReply(const RegisterReply& reply) {
  const bool again = registrations_++ > 0;
  identity_.set_worker(reply.worker());
  worker_ = reply.worker();
  identity_.set_incarnation(incarnation_.value());
  identity_.set_cluster_epoch(reply.cluster_epoch());
  if (!again) {
    server_has_values_ = reply.has_values();
    peers_ = {{reply.peers().begin(), reply.peers().end()}, reply.peers_token()};
    if (reply.snapshot_generation() != 0) {
      snapshot_offer_ = {reply.snapshot_dir(), Generation(reply.snapshot_generation()), reply.snapshot_root(),
                         reply.cluster_epoch()};
    }
  }
  if (job_ == nullptr || !google::protobuf::util::MessageDifferencer::Equals(*job_, reply.job())) {
    if (job_ != nullptr && job_->history() != reply.job().history()) diverged_.clear();
    job_ = std::make_shared<const JobConfig>(reply.job());
    push_batches_ = 0;  // They were of another policy.
  }
  workers_ = reply.workers();
  first_allowed_step_ = std::max(first_allowed_step_, reply.start_step());
  int lost = 0;
  for (const HeldLeasePtr& held : held_) {
    const auto same = std::find_if(reply.adopted().begin(), reply.adopted().end(), [&](const Lease& lease) {
      return lease.kind() == held->task.kind() && lease.data_epoch() == held->task.data_epoch() &&
             lease.end() == held->task.end() &&
             // No more can be completed of it than it has.
             lease.split() <= held->task.split() + std::max(1u, held->task.splits());
    });
    held->lost = held->lost || same == reply.adopted().end();
    if (held->lost) {
      ++lost;
    } else {
      held->number = same->lease();
      if (same->split() > held->task.split()) {
        held->done = std::max(held->done, same->split() - held->task.split());
      }
    }
  }
  LogInfo("{} as worker {} of cluster epoch {}: first step {}, {} leases kept, {} lost",
          again ? "registered again" : "registered", reply.worker(), reply.cluster_epoch(), FirstNew(),
          held_.size() - static_cast<size_t>(lost), lost);
}

absl::Status Session::RegisterOnce() {
  RegisterRequest request;
  {
    MutexLock lock(&mu_);
    request = MakeRequest();
  }
  RECON_ASSIGN_OR_RETURN(const RegisterReply reply, client_->Register(request));
  RECON_RETURN_IF_ERROR(CheckJob(reply.job()));
  if (options_.adopt_codec) options_.adopt_codec(reply.codec_choice());
  if (options_.adopt_servers) RECON_RETURN_IF_ERROR(options_.adopt_servers(reply));
  MutexLock lock(&mu_);
  AdoptReply(reply);
  unreachable_since_ = absl::InfiniteFuture();
  return absl::OkStatus();
}

absl::Status Session::RegisterFirst() {
  absl::Status status = RegisterUntilOk();
  while (options_.draw_name && absl::IsAlreadyExists(status)) {
    LogInfo("drawing another name: {}", status.message());
    name_ = options_.draw_name();
    status = RegisterUntilOk();
  }
  return status;
}

absl::Status Session::Diagnose(const absl::Status& error) const {
  return absl::IsUnavailable(error) && options_.diagnose ? options_.diagnose() : absl::OkStatus();
}

absl::Status Session::RegisterUntilOk() {
  const absl::Time give_up = Now() + options_.reconnect_for;
  const bool known_to_server = standing().registration > 0;
  Backoff backoff;
  bool said = false;
  absl::Status cause;
  while (true) {
    const absl::Status status = RegisterOnce();
    if (status.ok()) {
      TellOfWaiting(status);
      return status;
    }
    // It begins anew, or another process has the name still.
    const bool asks_to_wait = absl::IsAborted(status);
    if (!ServerGone(status) && !asks_to_wait) return status;
    if (Now() >= give_up) {
      if (asks_to_wait) return status;
      return absl::UnavailableError(absl::StrCat("the server has not answered for ",
                                                 absl::FormatDuration(options_.reconnect_for), ": ",
                                                 status.message()));
    }
    // A server that ends at this moment may look the same, and one that a worker has trained with may come
    // back: the same cause twice, before the first registration, is the end.
    const absl::Status before = std::exchange(cause, Diagnose(status));
    const bool hopeless = !known_to_server && !cause.ok();
    if (hopeless && cause == before) return cause;
    if (asks_to_wait && !said) {
      LogWarn("{}", status.message());
      said = true;
    }
    if (!said && !hopeless) {
      LogWarn("the head at {} {}, trying again: {}", options_.head,
              SaysJobWaits(status) ? "takes no workers yet" : "cannot be reached",
              (cause.ok() ? status : cause).message());
      said = true;
    }
    TellOfWaiting(cause.ok() ? status : cause);
    if (stop_->load() || !Pause(backoff.Next())) return absl::CancelledError("the worker is stopping");
  }
}

absl::Status Session::Recover(const absl::Status& error, const Standing& used, Backoff* backoff) {
  RECON_RETURN_IF_ERROR(fatal());
  if (ServerGone(error) || absl::IsResourceExhausted(error)) {
    {
      MutexLock lock(&mu_);
      unreachable_since_ = std::min(unreachable_since_, Now());
      if (Now() - unreachable_since_ > options_.reconnect_for) return error;
    }
    const absl::Duration hint = RetryAfter(error).value_or(absl::ZeroDuration());
    return Pause(std::max(backoff->Next(), hint)) ? absl::OkStatus()
                                                  : absl::CancelledError("the worker is stopping");
  }
  if (!absl::IsFailedPrecondition(error)) return error;
  const absl::Status status = RegisterAgain(error, used);
  // Without registering_, for which those may wait that it ends.
  if (!fatal().ok() && options_.on_failure) options_.on_failure();
  return status;
}

absl::Status Session::RegisterAgain(const absl::Status& why, const Standing& used) {
  MutexLock only_one(&registering_);
  {
    MutexLock lock(&mu_);
    RECON_RETURN_IF_ERROR(fatal_);
    if (registrations_ != used.registration) return absl::OkStatus();  // Another thread did it.
    if (stopping_) return absl::CancelledError("the worker is stopping");
  }
  LogWarn("registering again: {}", why.message());
  const absl::Status status = RegisterUntilOk();
  MutexLock lock(&mu_);
  fatal_.Update(status);  // Whose turn is next need not try, too.
  return status;
}

void Session::HeartbeatLoop() {
  std::deque<std::pair<absl::Time, uint64_t>> history;
  const absl::Duration interval = absl::Milliseconds(job()->heartbeat_interval_ms());
  do {
    const absl::Time now = Now();
    history.emplace_back(now, counters_.samples.load());
    while (now - history.front().first > kRateWindow && history.size() > 2) history.pop_front();
    const double seconds = absl::ToDoubleSeconds(now - history.front().first);
    const auto samples = static_cast<double>(history.back().second - history.front().second);
    HeartbeatOnce(seconds > 0 ? samples / seconds : 0);
  } while (Pause(interval));
}

void Session::HeartbeatOnce(double samples_per_second) {
  HeartbeatRequest request;
  const Standing used = standing();
  *request.mutable_identity() = used.identity;
  WorkerProgress* progress = request.mutable_progress();
  progress->set_steps(counters_.steps);
  progress->set_samples(counters_.samples);
  progress->set_samples_per_second(samples_per_second);
  progress->set_reconstruct_ms(counters_.reconstruct_ms);
  progress->set_saturated_values(counters_.saturated);
  progress->set_underflown_values(counters_.underflown);
  progress->set_last_loss(counters_.last_loss);
  progress->set_residual_norm(counters_.residual_norm);
  progress->set_batches(counters_.batches);
  progress->set_waiting(counters_.waiting > 0);
  progress->set_batch_seconds(counters_.batch_seconds);
  progress->set_batch_samples(counters_.batch_samples);
  progress->set_micro_batch_samples(counters_.micro_batch_samples);
  progress->set_loss_scale(counters_.loss_scale);
  progress->set_skipped_batches(counters_.skipped_batches);
  if (options_.describe) options_.describe(progress);
  {
    MutexLock lock(&mu_);
    progress->set_diverged(diverged_);
    request.set_next_step(FirstUnacknowledged());
    *request.mutable_state() = state_report_;
    for (const HeldLeasePtr& held : held_) request.add_leases(held->number);
  }
  const absl::StatusOr<HeartbeatReply> reply = client_->Heartbeat(request);
  if (!ServerGone(reply.status())) {
    silent_since_ = absl::InfiniteFuture();
  } else if (silent_since_ == absl::InfiniteFuture()) {
    silent_since_ = Now();
  } else if (Now() - silent_since_ > limits::kServerSilenceMax) {
    silent_since_ = Now();
    if (options_.on_silence) options_.on_silence();
  }
  if (reply.ok()) {
    MutexLock lock(&telling_);
    head_says_ = ClippedText(reply->waits_for(), limits::kProgressTextBytesMax);
    head_drains_ = reply->phase() == PHASE_DRAINING;
  }
  TellOfWaiting(ServerGone(reply.status()) ? reply.status() : absl::OkStatus());
  if (!reply.ok()) {
    Backoff backoff;  // The loop's interval is the pause that matters here.
    const absl::Status recovered = Recover(reply.status(), used, &backoff);
    if (!recovered.ok() && !absl::IsCancelled(recovered)) Fail(recovered);
    return;
  }
  if (!reply->rival().empty()) TellOfRival(reply->rival());
  if (options_.adopt_codec) options_.adopt_codec(reply->codec_choice());
  if (options_.adopt_workers) options_.adopt_workers(reply->workers());
  if (options_.follow_trace) options_.follow_trace(*reply, name_, used.identity.worker());
  push_batches_.store(reply->push_batches(), std::memory_order_relaxed);
  workers_.store(reply->workers(), std::memory_order_relaxed);
  MutexLock lock(&mu_);
  phase_ = reply->phase();
  state_reply_ = reply->state();
  unreachable_since_ = absl::InfiniteFuture();
  for (const HeldLeasePtr& held : held_) {
    if (std::find(reply->lost().begin(), reply->lost().end(), held->number) != reply->lost().end()) {
      held->lost = true;
    }
  }
}

void Session::TellOfRival(const std::string& rival) {
  const absl::Time now = Now();
  if (rival == rival_ || now - rival_told_at_ < kRivalToldEvery) return;
  LogWarn(
      "the process at {} waits for this worker's name, {}: if both were meant to run, give them two names",
      rival, name_);
  rival_ = rival;
  rival_told_at_ = now;
}

absl::StatusOr<Session::Acquired> Session::Acquire() {
  Backoff backoff;
  while (true) {
    AcquireRequest request;
    const Standing used = standing();
    *request.mutable_identity() = used.identity;
    {
      MutexLock lock(&mu_);
      request.set_next_step(FirstUnacknowledged());
      *request.mutable_state() = state_report_;
    }
    const absl::StatusOr<AcquireReply> reply = client_->Acquire(request);
    if (!reply.ok()) {
      RECON_RETURN_IF_ERROR(Recover(reply.status(), used, &backoff));
      continue;
    }
    if (reply->lease().kind() != LEASE_NONE) {
      RECON_RETURN_IF_ERROR(
          CheckLease(reply->lease(), *job(), options_.train_samples, options_.test_samples));
    }
    Acquired acquired;
    acquired.phase = reply->phase();
    acquired.initial_values_wanted = reply->needs_initial_values();
    if (reply->lease().kind() == LEASE_TRAIN) {
      push_batches_.store(reply->push_batches(), std::memory_order_relaxed);
    }
    MutexLock lock(&mu_);
    phase_ = reply->phase();
    state_reply_ = reply->state();
    if (reply->lease().kind() != LEASE_NONE) {
      acquired.lease = std::make_shared<HeldLease>();
      acquired.lease->task = reply->lease();
      acquired.lease->number = reply->lease().lease();
      held_.insert(acquired.lease);
      first_allowed_step_ = std::max(first_allowed_step_, reply->start_step());
    }
    return acquired;
  }
}

absl::Status Session::FinishLease(const HeldLeasePtr& held, std::optional<uint32_t> split,
                                  CompleteRequest request) {
  absl::Status status;
  Backoff backoff;
  request.set_abandon(!split);
  while (true) {
    const Standing used = standing();
    *request.mutable_identity() = used.identity;
    {
      MutexLock lock(&mu_);
      request.set_lease(held->number);
      if (split) {
        if (*split < held->done) return absl::OkStatus();
        request.set_split(held->task.split() + *split);
      }
      if (held->lost) status = absl::AbortedError("the lease was lost");
    }
    if (!status.ok()) break;
    status = client_->Complete(request).status();
    // A registration meanwhile has given the lease another number.
    if (absl::IsAborted(status) && standing().registration != used.registration) continue;
    if (status.ok() || absl::IsAborted(status)) break;
    const absl::Status recovered = Recover(status, used, &backoff);
    status = recovered;
    if (!recovered.ok()) break;
  }
  MutexLock lock(&mu_);
  if (status.ok() && split) {
    held->done = std::max(held->done, *split + 1);
    if (held->done < std::max(1u, held->task.splits())) return status;
  }
  held->lost = held->lost || !split || !status.ok();
  held_.erase(held);
  return status;
}

absl::Status Session::CompleteTraining(const HeldLeasePtr& held, uint32_t split, bool pushed) {
  CompleteRequest request;
  request.set_without_push(!pushed);
  return FinishLease(held, split, std::move(request));
}

absl::Status Session::CompleteEvaluation(const HeldLeasePtr& held, const EvalResult& eval) {
  CompleteRequest request;
  *request.mutable_eval() = eval;
  return FinishLease(held, 0, std::move(request));
}

uint32_t Session::done(const HeldLeasePtr& held) const {
  MutexLock lock(&mu_);
  return held->done;
}

void Session::Abandon(const HeldLeasePtr& held) {
  const absl::Status status = FinishLease(held, std::nullopt, CompleteRequest());
  if (!status.ok()) LogDebug("lease given up: {}", status.message());
}

bool Session::lost(const HeldLeasePtr& held) const {
  MutexLock lock(&mu_);
  return held->lost;
}

void Session::NoteDivergence(const std::string& why) {
  MutexLock lock(&mu_);
  if (diverged_.empty()) LogError("{}: waiting for the server's rollback", why);
  diverged_ = why.substr(0, limits::kProgressTextBytesMax);
}

bool Session::diverged() const {
  MutexLock lock(&mu_);
  return !diverged_.empty();
}

void Session::Leave(const std::string& reason, const std::string& diverged) {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (heartbeats_.joinable()) heartbeats_.join();
  LeaveRequest request;
  *request.mutable_identity() = standing().identity;
  request.set_reason(reason);
  request.set_residual_norm(counters_.residual_norm);
  request.set_diverged(diverged.substr(0, limits::kProgressTextBytesMax));
  const absl::Status status = client_->Leave(request).status();
  if (!status.ok()) LogDebug("leaving: {}", status.message());
}

}  // namespace recon
