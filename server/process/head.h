#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/copied_bytes.h"
#include "server/cluster/cluster.h"
#include "server/control/control_journal.h"
#include "server/control/lane_coordinator.h"
#include "server/dashboard/dashboard.h"
#include "server/history/history_keeper.h"
#include "server/process/certificate_series.h"
#include "server/process/head_recovery.h"
#include "server/process/job_on_disk.h"
#include "server/process/lost_disks.h"
#include "server/process/rollbacks.h"
#include "server/process/server_process.h"
#include "server/process/worker_series.h"
#include "server/recovery/snapshot_service.h"
#include "server/rpc/access.h"
#include "server/rpc/cluster_service.h"
#include "server/rpc/control_service.h"
#include "server/rpc/trace_service.h"

namespace recon {

// Whether a server ended because of --idle-timeout, by what its Run() returned. Its job is not done; there is
// a snapshot.
bool EndedIdle(const absl::Status& status);

// The head of a job: a server process that also keeps the job's control state, leads the other servers, takes
// snapshots and answers workers and operators. It lives from one recovery to the next: who wants to go back,
// or to begin with other settings, destroys it and opens another.
//
// Threads: Open(), Run() and the destructor on one thread.
class Head {
 public:
  // Told what Run() is going to return for good, once all that is to be kept is on the disk. What is left is
  // to wait for threads, those of gRPC among them.
  using Ending = std::function<void(const absl::Status& outcome)>;
  struct Options {
    ServerFlags flags;
    Dashboard* dashboard = nullptr;                // Null: none. Outlives this.
    std::atomic<bool>* drain_requested = nullptr;  // Outlives this.
    absl::Duration began;     // What the process had run for, when it began to open this.
    Ending ending = nullptr;  // May be null.
  };
  explicit Head(const Options& options);
  ~Head();

  enum class Opened {
    kServes,
    // Or it cannot serve, as it was made for something else than is there; another Head finds that in the
    // control database:
    kPolicyWasLost,    // the push log has another policy,
    kRollbackGivenUp,  // the rollback cannot be done.
  };
  // Locks the data directory, raises the cluster epoch, recovers and opens the port, in this order.
  absl::StatusOr<Opened> Open();

  enum class Ended {
    kForGood,
    kToRecoverAnew,    // For a rollback.
    kForOtherSettings  // Those that a worker's script asks for: asked_for().
  };
  // Serves until a drain is asked for, the job is done (--exit-when-done), nobody trains it (--idle-timeout;
  // EndedIdle), a signal ends the process, or there is a reason to begin anew. All but the last two are the
  // job's end for its other servers, too. They wait for the next head after these.
  absl::StatusOr<Ended> Run();

  // host:port.
  const std::string& address() const { return process_.rpc()->address(); }
  const ServerFlags& flags() const { return process_.flags(); }
  const std::vector<FlagValue>& asked_for() const { return asked_for_; }

 private:
  // The policy in force, and what it is made of.
  struct PolicyInForce {
    PolicyBase base;
    PolicySettings settings;
    Policy policy;
    ApplyRules rules;  // The policy's, of this job, epoch and history.
  };

  // The steps of Open().
  absl::Status OpenAccess();
  void OpenHistory(uint64_t job_id);
  absl::StatusOr<PolicyInForce> ResolvePolicyInForce(const JobOnDisk& job);
  absl::Status MakeParams(const JobOnDisk& job, const PolicyInForce& policy);
  absl::Status MakeSnapshots();
  absl::Status MakeCoordinator(const PolicyInForce& policy);
  absl::StatusOr<Opened> Recover(const JobOnDisk& job, const PolicyInForce& policy);
  absl::Status ResumeJob(const std::optional<Manifest>& restored, const PolicyInForce& policy);
  absl::Status StartServing();

  absl::StatusOr<StateOwner> StateKept(const JobOnDisk& job, const PolicyInForce& policy) const;
  absl::StatusOr<std::unique_ptr<Cluster>> MakeCluster(const JobOnDisk& job, const PolicyInForce& policy,
                                                       const StateOwner& state) const;
  void StartCluster();
  CollectiveService::Options CollectiveOptions();
  // Control lane.
  void OnServersChanged();
  absl::Status AdoptProposal(const RegisterRequest& request);

  // `for_good`: the job's other servers end, too.
  absl::Status Drain(bool for_good);
  absl::Status TakeDrainSnapshot(bool for_good);
  absl::Status EndIdle();
  // Stops serving, and returns what it is given.
  absl::Status EndWith(const absl::Status& outcome);
  void StopServing(absl::Duration timeout);
  // Control lane.
  absl::Status FinishGoingBack();
  void CountCopies();
  void NoteStatus();

  // In the order of their construction; destroyed in reverse. The process has what all of these use, but
  // refers to the cluster.
  Dashboard* const dashboard_;
  std::atomic<bool>* const drain_requested_;
  const absl::Duration began_;
  const Ending ending_;
  ConnectedProcesses connected_;
  std::unique_ptr<Cluster> cluster_;  // With more than one server.
  ServerProcess process_;
  std::unique_ptr<Access> access_;
  std::map<CopyReason, prometheus::Counter*> copied_;  // Looked up once.
  std::unique_ptr<HistoryKeeper> history_;
  std::shared_ptr<WorkerSeries> worker_series_;
  std::shared_ptr<CertificateSeries> certificate_series_;  // With TLS.
  std::unique_ptr<HeadRecovery> recovery_;
  std::unique_ptr<ControlJournal> journal_;
  std::unique_ptr<SnapshotService> snapshots_;
  std::unique_ptr<LaneCoordinator> coordinator_;
  std::unique_ptr<InitialValues> initial_;  // Of a new job, with --from-snapshot.
  std::unique_ptr<Rollbacks> rollbacks_;
  std::unique_ptr<LostDisks> lost_disks_;  // With more than one server.
  std::unique_ptr<TraceService> trace_service_;
  std::unique_ptr<ControlService> control_service_;
  std::unique_ptr<ClusterService> cluster_service_;

  // What the first worker's script asks for: all is made anew for it.
  std::atomic<bool> begin_anew_{false};
  std::vector<FlagValue> asked_for_;  // Written on the control lane before that.
  bool serves_ = false;               // Open() has come to its end.
};

}  // namespace recon
