#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/backoff.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/rpc/worker_calls.h"
#include "worker/comm/peer_source.h"
#include "worker/comm/server_watch.h"
#include "worker/comm/snapshot_source.h"
#include "worker/comm/wait_watch.h"

namespace recon {

// A worker's standing with the server: registered, heard of, with leases; and registered again whenever
// the server has restarted or had given the worker up.
//
// Threads: thread-safe. A thread of its own sends heartbeats.
// Shutdown: Leave() in good order, or just destroy: the server notices by silence.
class Session {
 public:
  struct Options {
    std::string head;  // Where it is, host:port, for messages.
    std::string name;
    // Makes another name, where the user has given none; called until one is free. Join() only.
    std::function<std::string()> draw_name;
    Incarnation incarnation;  // Of this process; `client` shows its secret.
    ModelSpec model;
    uint64_t train_samples = 0;
    uint64_t test_samples = 0;
    std::string data_fingerprint;  // Of the training data; empty: nothing is said of it.
    std::string device;
    // Fills in what else a heartbeat tells. Heartbeat thread.
    std::function<void(WorkerProgress*)> describe;
    // Heartbeats have had no answer for limits::kServerSilenceMax; again after as long. Heartbeat thread.
    std::function<void()> on_silence;
    // The session has failed: ends what waits for servers, whose answers are of no use any more. Any thread;
    // it must not call the session.
    std::function<void()> on_failure;
    // Takes what every registration says of the job's servers. Any thread; must not call the session.
    std::function<absl::Status(const RegisterReply&)> adopt_servers;
    // Takes how many workers the job has, as heartbeats' answers say. Heartbeat thread.
    std::function<void(uint32_t)> adopt_workers;
    // Takes what a heartbeat's answer says of traces; the worker's number. Heartbeat thread.
    std::function<void(const HeartbeatReply&, const std::string& name, uint32_t worker)> follow_trace;
    // Takes what --codec auto stands for. Any thread; must not call the session.
    std::function<void(const CodecChoice&)> adopt_codec;
    std::string codec;
    // What the worker's script has of the job's settings; see RegisterRequest.
    std::vector<FlagValue> proposed;
    // host:port where other workers find this one's parameters; empty if it does not hand them out.
    std::string serves;
    bool simulated = false;
    // Which servers take no frames. Any thread; must not call the session.
    std::function<ServerWatch::Missing()> servers_away;
    // Why the server cannot be reached, if that is known and will not pass. It may block for seconds. The
    // thread that registers.
    std::function<absl::Status()> diagnose;
    // How long to keep trying when the server cannot be reached.
    absl::Duration reconnect_for = absl::Minutes(10);
  };
  // Numbers the heartbeats carry, written by the training threads.
  struct Counters {
    std::atomic<uint64_t> steps{0};
    std::atomic<uint64_t> samples{0};
    std::atomic<uint64_t> saturated{0};
    std::atomic<uint64_t> underflown{0};
    std::atomic<double> reconstruct_ms{0};
    std::atomic<double> last_loss{0};
    std::atomic<double> residual_norm{0};
    std::atomic<uint64_t> batches{0};
    std::atomic<double> batch_seconds{0};
    // 0: nothing is said of it.
    std::atomic<uint32_t> batch_samples{0};
    std::atomic<uint32_t> micro_batch_samples{0};
    std::atomic<double> loss_scale{0};
    std::atomic<uint64_t> skipped_batches{0};
    std::atomic<int> waiting{0};                  // How many calls of the training thread wait for a server,
    std::atomic<const char*> waits_for{nullptr};  // and for what the innermost does, as people read it.
    std::atomic<uint64_t> batches_begun{0};
  };
  // A lease this worker works on. The number changes when the server restarts.
  struct HeldLease {
    Lease task;  // As it was granted; never changes.
    // Guarded by the session's lock, as what follows.
    uint64_t number = 0;
    uint32_t done = 0;  // How many of its splits are completed.
    bool lost = false;  // Or given back.
  };
  using HeldLeasePtr = std::shared_ptr<HeldLease>;

  // Who this worker is to the server, and how often it has registered so far.
  struct Standing {
    WorkerIdentity identity;
    uint64_t registration = 0;
  };

  // Registers, trying again while the server cannot be reached, until `stop`; not if `diagnose` says twice
  // the same. `client` and `stop` must outlive the session.
  static absl::StatusOr<std::unique_ptr<Session>> Join(const Options& options, WorkerCalls* client,
                                                       const std::atomic<bool>* stop);
  ~Session();

  Standing standing() const;
  const std::string& name() const { return name_; }
  // Of the last registration.
  uint32_t worker() const { return worker_.load(std::memory_order_relaxed); }
  // As the last registration said: another object when the server has changed anything of it.
  std::shared_ptr<const JobConfig> job() const;
  bool server_has_values() const { return server_has_values_; }
  // By the first registration: the newest snapshot, and where workers are that hand out their parameters.
  const SnapshotOffer& snapshot_offer() const { return snapshot_offer_; }
  const PeerOffer& peers() const { return peers_; }
  Counters* counters() { return &counters_; }
  JobPhase phase() const;
  // Why the worker cannot go on; OK while it can.
  absl::Status fatal() const;
  // From now on it cannot. The first reason counts. Any thread.
  void Fail(const absl::Status& status);

  // Handles an error of a call that was made with the standing `used`: registers again if that is the cure,
  // waits and returns OK if trying again makes sense, or returns the error. Any thread. `backoff` is the
  // caller's, one for each operation it tries.
  absl::Status Recover(const absl::Status& error, const Standing& used, Backoff* backoff);

  // The next lease, or none; `initial_values_wanted` if the server has none and asks this worker.
  struct Acquired {
    HeldLeasePtr lease;
    JobPhase phase = PHASE_WAITING;
    bool initial_values_wanted = false;
  };
  absl::StatusOr<Acquired> Acquire();
  // Reports a split of the lease as done: its number within the lease, from 0, in their order. `pushed`: some
  // of a training split was; what of it was not is no loss. Aborted if the lease was lost.
  absl::Status CompleteTraining(const HeldLeasePtr& held, uint32_t split, bool pushed);
  absl::Status CompleteEvaluation(const HeldLeasePtr& held, const EvalResult& eval);
  // How many of its splits are completed; those at its front, by others perhaps, after it had been lost for a
  // while.
  uint32_t done(const HeldLeasePtr& held) const;
  void Abandon(const HeldLeasePtr& held);
  bool lost(const HeldLeasePtr& held) const;
  // Batches of a push, as the server has last said; 0 if it does not.
  uint32_t push_batches() const { return push_batches_.load(std::memory_order_relaxed); }
  // Of the job, this one among them, as the server has last said.
  uint32_t workers() const { return workers_.load(std::memory_order_relaxed); }
  // `diverged`: why nothing could be computed from the parameters there were; empty if it could.
  void Leave(const std::string& reason, const std::string& diverged = "");

  // Of a job whose workers have the optimizer: what heartbeats and questions for work say of this worker's
  // state from now on, and what the server has said last. Any thread.
  void ReportState(const WorkerStateReport& report);
  WorkerStateReply state() const;

  // Nothing can be computed from the parameters there are: heartbeats say so until the job has been rolled
  // back. Any thread.
  void NoteDivergence(const std::string& why);
  bool diverged() const;

  // Steps: the next one to push, and which are not acknowledged. While must_drain(), the next step would
  // be so far from one that is still under way (it tries again, or steps jump to where the others are) that a
  // ledger might not tell it from an old one: what is under way has to be acknowledged first.
  bool must_drain() const;
  // None if that is so by now.
  std::optional<uint64_t> TakeStep();
  void Acknowledge(uint64_t step);
  // No step before this one is pushed any more: it has gone by without this worker.
  void SkipTo(uint64_t step);
  // The next step that will be pushed.
  uint64_t first_new_step() const;
  // The step of a push was closed without it: takes part in steps again. Returns the one in which the push is
  // sent again, under way from now on in place of `step`. Aborted if it counts no more. Blocks, trying again
  // while the server cannot be reached.
  absl::StatusOr<uint64_t> Rejoin(uint64_t step);

 private:
  Session(const Options& options, WorkerCalls* client, const std::atomic<bool>* stop);

  absl::Status RegisterOnce() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RegisterUntilOk();
  // Likewise, under a name that is free where it may be any.
  absl::Status RegisterFirst();
  // Once for all who ask with the same standing. The session has failed if it cannot.
  absl::Status RegisterAgain(const absl::Status& why, const Standing& used);
  // What `diagnose` says of a server that has not answered.
  absl::Status Diagnose(const absl::Status& error) const;
  RegisterRequest MakeRequest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AdoptReply(const RegisterReply& reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MustDrain() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t FirstNew() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t FirstUnacknowledged() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HeartbeatLoop();
  void HeartbeatOnce(double samples_per_second);
  // A process at `rival` waits for the name.
  void TellOfRival(const std::string& rival);
  // Without a split: all that is left of it is given back.
  // `request`: all but who asks, and for what. No split: the lease is abandoned.
  absl::Status FinishLease(const HeldLeasePtr& held, std::optional<uint32_t> split, CompleteRequest request);
  // What a call to the head has come to: says in the log what the worker waits for, again and again.
  void TellOfWaiting(const absl::Status& outcome);
  // Sleeps, but not beyond Stop(); false if stopped.
  bool Pause(absl::Duration duration);

  // Set in the constructor.
  const Options options_;
  WorkerCalls* const client_;
  const std::atomic<bool>* const stop_;
  const Incarnation incarnation_;
  std::string name_;                // Set by Join().
  bool server_has_values_ = false;  // By the first registration.
  SnapshotOffer snapshot_offer_;    // Likewise.
  PeerOffer peers_;                 // Likewise.

  Counters counters_;
  std::atomic<uint32_t> push_batches_{0};
  std::atomic<uint32_t> workers_{1};
  std::atomic<uint32_t> worker_{0};
  Mutex registering_ ABSL_ACQUIRED_BEFORE(mu_);  // Held by the one thread that registers.

  mutable Mutex mu_;
  WorkerIdentity identity_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const JobConfig> job_ ABSL_GUARDED_BY(mu_);
  // Tells a caller that another thread has registered meanwhile.
  uint64_t registrations_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<HeldLeasePtr> held_ ABSL_GUARDED_BY(mu_);
  uint64_t next_step_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t first_allowed_step_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<uint64_t> unacknowledged_ ABSL_GUARDED_BY(mu_);
  JobPhase phase_ ABSL_GUARDED_BY(mu_) = PHASE_WAITING;
  absl::Status fatal_ ABSL_GUARDED_BY(mu_);
  std::string diverged_ ABSL_GUARDED_BY(mu_);
  WorkerStateReport state_report_ ABSL_GUARDED_BY(mu_);
  WorkerStateReply state_reply_ ABSL_GUARDED_BY(mu_);
  absl::Time silent_since_ = absl::InfiniteFuture();  // Heartbeat thread only.
  std::string rival_;                                 // Likewise: which the log has told of last,
  absl::Time rival_told_at_ = absl::InfinitePast();   // and when.
  absl::Time unreachable_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  Mutex telling_;  // A leaf.
  WaitWatch wait_watch_ ABSL_GUARDED_BY(telling_);
  absl::Time answered_at_ ABSL_GUARDED_BY(telling_) = absl::InfinitePast();
  std::string head_says_ ABSL_GUARDED_BY(telling_);
  bool head_drains_ ABSL_GUARDED_BY(telling_) = false;

  std::thread heartbeats_;
};

}  // namespace recon
