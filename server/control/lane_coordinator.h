#pragma once

#include <memory>

#include "common/base/lane.h"
#include "common/metrics/metrics.h"
#include "server/cluster/cluster.h"
#include "server/control/control_journal.h"
#include "server/control/coordinator.h"
#include "server/control/server_ports.h"
#include "server/data_plane/param_server.h"
#include "server/recovery/initial_values.h"
#include "server/recovery/snapshot_service.h"

namespace recon {

// The ports of a LaneCoordinator: a base of it, so that they are there before the coordinator is made.
class LanePorts {
 protected:
  LanePorts(ParamServer* params, ControlJournal* journal, SnapshotService* snapshots, Cluster* cluster,
            Lane* lane);
  CoordinatorPorts ports();

  ParamServer* const data_plane_;
  ControlJournal* const control_journal_;
  ParamServerPort params_port_;
  SnapshotServicePort snapshots_port_;
  std::unique_ptr<ClusterPort> cluster_port_;
  std::unique_ptr<InitialValuesPort> initial_port_;
};

// The coordinator of a server's process: it decides on a lane of its own, about this process's data plane,
// snapshots, journal and other servers.
//
// Threads: every method of Coordinator runs on lane(); a task there may block on the disk (ControlJournal),
// on nothing else. Shutdown: the destructor runs what was posted to the lane.
class LaneCoordinator final : private LanePorts, public Coordinator {
 public:
  // The pointers must outlive the coordinator. `cluster`: the job's other servers; null if there are none.
  LaneCoordinator(const Options& options, ParamServer* params, ControlJournal* journal,
                  SnapshotService* snapshots, Cluster* cluster, Metrics* metrics);

  // As Coordinator's, with values that must outlive the lane's work.
  void BeginFrom(InitialValues* initial);

  // Any thread but the lane. Waits until workers have been told what phase the job is in since that time, for
  // at most so long.
  void AwaitHeardOfAllSince(absl::Time since, absl::Duration timeout);

  // The lane that all other methods must run on.
  Lane* lane() { return &lane_; }

 private:
  Lane lane_;  // Last: stops before what its tasks use is destroyed.
};

}  // namespace recon
