#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/trace_reporter.h"
#include "proto/cluster.pb.h"
#include "server/process/part_writer.h"
#include "server/process/server_process.h"
#include "server/rpc/head_link.h"
#include "server/rpc/joined_control_service.h"

namespace recon {

// A server of a job that another one leads (--join): it holds the shards of its place, logs and applies what
// is pushed to them, and does what the head says. It looks for the head until it is stopped; when its place
// is known it restores what its data directory, or the newest snapshot, has of it.
//
// Threads: Open(), Run() and the destructor on one thread. A thread of its own follows the head.
class Follower {
 public:
  // `stop`: set by whoever wants Run() to end, and by the destructor; it outlives this.
  Follower(const ServerFlags& flags, std::atomic<bool>* stop) : process_(flags), stop_(*stop) {}
  ~Follower();

  // Locks the data directory and opens the port. Workers are told to wait until the head has given it a
  // place.
  absl::Status Open();
  // Serves until the head ends the job, SIGTERM or `stop`. FailedPrecondition if the job has no place for it.
  absl::Status Run();

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
  absl::Status FollowOnce();
  absl::Status Execute(const ServerCommand& command);
  void BeginDrain();
  absl::Status TakePlace(const Assignment& assignment);
  absl::Status CheckSameAssignment(const Assignment& assignment) const;

  // The steps from an assignment to a server that takes frames. The thread that follows.
  absl::Status TakeUp(const Assignment& assignment);
  absl::Status MakeParams(const Assignment& assignment, const ApplyRules& rules);
  absl::Status MakePartWriter(const Assignment& assignment, const std::string& directory);
  absl::Status SavePlace(const Assignment& assignment);
  absl::Status Recover(const Assignment& assignment, const std::string& directory, bool synced);
  absl::Status BeginWithoutSnapshot(const Assignment& assignment, const std::string& directory);
  absl::Status OpenLog(const Assignment& assignment, const ApplyRules& rules,
                       ServerFlags::Durability durability);
  void LogPlace(const Assignment& assignment) const;

  // Any thread.
  void Report(ServerReport report);
  void ReportDelivery(WorkerId worker, Incarnation incarnation, uint64_t step,
                      absl::Span<const uint32_t> shards, uint32_t push_parts);
  ServerReport Progress() const;
  // Where workers reach it.
  std::string OwnAddress() const;
  void Fail(const absl::Status& status);
  bool ended_or_failed() const;

  // In the order of their construction; destroyed in reverse.
  ServerProcess process_;
  std::atomic<bool>& stop_;
  Caller caller_;  // Shown to the head.
  std::shared_ptr<grpc::Channel> head_;
  std::unique_ptr<TraceReporter> traces_;
  std::unique_ptr<JoinedControlService> control_service_;

  // The thread that follows, only.
  ServerPlace place_;
  std::optional<Assignment> assignment_;
  bool drained_ = false;

  mutable Mutex mu_;
  std::shared_ptr<HeadLink> link_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  bool done_ ABSL_GUARDED_BY(mu_) = false;

  // Set by the thread that follows, before frames are accepted.
  std::unique_ptr<PartWriter> parts_;
  std::thread follower_;
};

}  // namespace recon
