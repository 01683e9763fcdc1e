#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/secret.h"
#include "common/base/start_guard.h"
#include "common/collective/ticket.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/trace_reporter.h"
#include "proto/cluster.pb.h"
#include "server/process/head_watch.h"
#include "server/process/joined_server.h"
#include "server/process/part_writer.h"
#include "server/process/server_process.h"
#include "server/rpc/joined_control_service.h"

namespace recon {

// The process of a server of a job that another one leads (--join): it holds the shards of its place, logs
// and applies what is pushed to them, and does what the head says (JoinedServer). It looks for the head until
// it is stopped; when its place is known it restores what its data directory, or the newest snapshot, has of
// it.
//
// Threads: Open(), Run() and the destructor on one thread. A thread of its own follows the head.
class Follower : private ShardHost {
 public:
  // `stop`: set by whoever wants Run() to end; it outlives this.
  Follower(const ServerFlags& flags, const std::atomic<bool>* stop)
      : process_(flags), stop_(*stop), joined_(this) {}
  ~Follower() override;

  // Locks the data directory and opens the port. Workers are told to wait until the head has given it a
  // place.
  absl::Status Open();
  enum class Ended {
    kForGood,
    kToBeginAnew,  // With what the head says now; JoinedServer::begins_anew().
  };
  // Serves until the head ends the job, SIGTERM or `stop`, or there is a reason to begin anew. A head that is
  // away is waited for. FailedPrecondition if the job has no place for it.
  absl::StatusOr<Ended> Run();

  // host:port.
  const std::string& address() const { return process_.rpc()->address(); }

 private:
  // The steps of Open().
  absl::Status CheckAddresses() const;
  absl::Status ConnectToHead();
  absl::Status OpenIdentity();
  absl::Status StartServing();

  // The thread that follows the head.
  void Follow();
  // What the end of a link means; not OK: there is no sense in another. Says what it is, the first time.
  absl::Status NoteLinkEnded(const absl::Status& ended);
  // Says what this server waits for, again and again. The thread of Run().
  void SayWaiting();
  ServerHello Hello() const override;
  absl::StatusOr<RecoveredPlace> TakeUp(const Assignment& assignment) override;
  absl::StatusOr<LoggedWork> CountBeyond(uint64_t sequence) override;
  absl::Status RestoreState(const recon::RestoreState& command) override;
  void FollowTrace(const TraceCommand& command) override;
  void NoteAdmitted(Incarnation process) override;
  // Any thread.
  ParamServer* accepting() const override { return process_.accepting(); }
  PartWriter* parts() const override { return parts_.get(); }

  // The steps from an assignment to a server that takes frames. The thread that follows.
  absl::Status MakeParams(const Assignment& assignment);
  absl::Status MakePartWriter(const Assignment& assignment, const std::string& directory);
  absl::Status SavePlace(const Assignment& assignment);
  absl::Status OpenLog(const Assignment& assignment, ServerFlags::Durability durability);
  void LogPlace(const Assignment& assignment) const;

  // Where workers reach it.
  std::string OwnAddress() const;
  bool stops() const { return stop_.load() || ending_.load(); }

  // In the order of their construction; destroyed in reverse.
  std::optional<StartGuard> guard_;  // While it ends, if it ends before it has served.
  ServerProcess process_;
  KnownWorkers known_workers_{process_.flags().data + "/WORKERS"};
  const std::string ticket_key_ = DrawSecret(kTicketKeyBytes);  // Told to the head.
  const std::atomic<bool>& stop_;
  std::atomic<bool> ending_{false};             // By the destructor.
  std::atomic<bool> has_place_{false};          // The head has given it one.
  std::unique_ptr<Introduction> introduction_;  // Shown to the head.
  std::shared_ptr<grpc::Channel> head_;
  std::unique_ptr<TraceReporter> traces_;
  std::unique_ptr<JoinedControlService> control_service_;
  JoinedServer joined_;

  // The thread that follows, only.
  ServerPlace place_;
  absl::Status cause_;  // Why the head cannot be reached, as far as its certificate tells.
  absl::Time link_error_said_at_ = absl::InfinitePast();

  HeadWatch head_watch_;                                                  // The thread of Run(), only.
  Mutex mu_;                                                              // A leaf.
  std::string link_error_ ABSL_GUARDED_BY(mu_);                           // Why the last link has ended,
  absl::Time link_ended_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();  // and when.

  // Set by the thread that follows, before frames are accepted.
  std::unique_ptr<PartWriter> parts_;
  std::thread follower_;
};

}  // namespace recon
