#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "proto/cluster.pb.h"
#include "server/cluster/links.h"
#include "server/data_plane/param_server.h"
#include "server/process/part_writer.h"
#include "server/process/place_recovery.h"
#include "server/recovery/log_survey.h"

namespace recon {

// Who has the shards of a place: a server's process, or a test.
//
// Threads: the one that follows the head, but for accepting() and parts().
class ShardHost {
 public:
  virtual ~ShardHost() = default;
  // Who it is, and what its data directory has.
  virtual ServerHello Hello() const = 0;
  // Restores the state of the place, opens its log, and takes frames from then on. Once. Blocks.
  virtual absl::StatusOr<RecoveredPlace> TakeUp(const Assignment& assignment) = 0;
  // Pushes that its log has beyond a record. After TakeUp(). Blocks.
  virtual absl::StatusOr<LoggedWork> CountBeyond(uint64_t sequence) = 0;
  // The workers' state of that snapshot takes the place of what is here, under the number of an upload. After
  // TakeUp(). Blocks.
  virtual absl::Status RestoreState(const recon::RestoreState& command) = 0;
  // The place's parameters once they take frames, else null. Any thread.
  virtual ParamServer* accepting() const = 0;
  // Not null once accepting() is not. Any thread.
  virtual PartWriter* parts() const = 0;
  virtual void FollowTrace(const TraceCommand& command) = 0;
  // The head has said that this process of a worker is admitted.
  virtual void NoteAdmitted(Incarnation) {}
};

// What a server does in a job that another one leads: it says who it is, takes up the place that it is given,
// carries out what the head says, in its order, and reports. Of links it has one after the other; what it
// reports while it has none is lost, and asked for anew in the next cluster epoch.
//
// Threads: Follow() on one; the rest on any. Its lock may be taken under a ParamServer's.
// Shutdown: Stop(), and wait until Follow() has returned.
class JoinedServer {
 public:
  // `host` must outlive it.
  explicit JoinedServer(ShardHost* host);

  // Does all this over `link` until it ends. Returns why; failure() is what this server could not do, and
  // begins_anew() what it has to do next.
  absl::Status Follow(const std::shared_ptr<HeadLink>& link);
  // Follow() returns soon, and at once from now on.
  void Stop();
  // Waits for Stop(), for at most so long; whether it was called.
  bool AwaitStop(absl::Duration timeout);

  void Report(ServerReport report);
  // As ParamServer::Options has it.
  void ReportDelivery(WorkerId worker, Incarnation incarnation, uint64_t step,
                      absl::Span<const uint32_t> shards, uint32_t push_parts);
  // How far it is. Several times a second: the head gives up a server that is silent.
  void ReportProgress();

  // This server's process ends in good order: the head is told, where there is a link, and ends it; waits for
  // that, for at most so long. Before Stop().
  void Leave(const std::string& why, absl::Duration timeout);
  bool leaving() const;
  // When the head was heard of last, on any link: now, while a command is carried out; the begin if it never
  // was. What it said then that the job
  // waits for; empty if the job moves.
  absl::Time heard_at() const;
  std::string waits_for() const;

  // The head has ended the job.
  bool done() const;
  // The head has said that it drains the job.
  bool drained() const;
  // What is there is of no use to the head that there is now: its settings are others, or this one has
  // drained for a head that went before the job ended. Whoever made this makes another one, with all that the
  // place is recovered into.
  bool begins_anew() const;
  // Not OK: a command could not be carried out. The next start may do better.
  absl::Status failure() const;
  void Fail(const absl::Status& why);

 private:
  absl::Status Execute(const ServerCommand& command);
  absl::Status TakePlace(const Assignment& assignment);
  absl::Status ReportReady(const Assignment& assignment);
  bool IsSameAssignment(const Assignment& assignment) const;
  void BeginAnew(const std::string& why);
  void TakeInitialValues(const AwaitInitialValues& command);
  void TakeState(const AwaitState& command);
  void BeginDrain();
  // A command begins to be carried out, or has been.
  void NoteHeard(const ServerCommand& command, bool begins);
  bool stopped() const;

  ShardHost* const host_;

  // The thread that follows, only.
  std::optional<Assignment> assignment_;
  RecoveredPlace recovered_;  // What it has lost is of no interest once an epoch has begun.

  mutable Mutex mu_;
  std::shared_ptr<HeadLink> link_ ABSL_GUARDED_BY(mu_);  // Null while there is none.
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  bool drained_ ABSL_GUARDED_BY(mu_) = false;  // It takes no pushes any more.
  bool begins_anew_ ABSL_GUARDED_BY(mu_) = false;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time heard_at_ ABSL_GUARDED_BY(mu_);
  bool executing_ ABSL_GUARDED_BY(mu_) = false;
  std::string waits_for_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
