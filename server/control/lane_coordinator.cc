#include "server/control/lane_coordinator.h"

#include "common/base/clock.h"
#include "common/base/sleep.h"

namespace recon {
namespace {

constexpr absl::Duration kHeardPoll = absl::Milliseconds(20);

Coordinator::Options SinceProcessBegan(Coordinator::Options options) {
  options.process_began = Now() - ProcessUptime();
  return options;
}

}  // namespace

LanePorts::LanePorts(ParamServer* params, ControlJournal* journal, SnapshotService* snapshots,
                     Cluster* cluster, Lane* lane)
    : data_plane_(params),
      control_journal_(journal),
      params_port_(params, lane),
      snapshots_port_(snapshots, params, lane),
      cluster_port_(cluster == nullptr ? nullptr : std::make_unique<ClusterPort>(cluster, lane)) {}

CoordinatorPorts LanePorts::ports() {
  CoordinatorPorts ports;
  ports.params = &params_port_;
  ports.steps = data_plane_->members();
  ports.snapshots = &snapshots_port_;
  ports.others = cluster_port_.get();
  ports.journal = control_journal_;
  return ports;
}

// The ports keep only the lane's address until the coordinator is there.
LaneCoordinator::LaneCoordinator(const Options& options, ParamServer* params, ControlJournal* journal,
                                 SnapshotService* snapshots, Cluster* cluster, Metrics* metrics)
    : LanePorts(params, journal, snapshots, cluster, &lane_),
      Coordinator(SinceProcessBegan(options), ports(), metrics),
      lane_("control") {}

void LaneCoordinator::BeginFrom(InitialValues* initial) {
  initial_port_ = std::make_unique<InitialValuesPort>(initial, data_plane_, &lane_);
  Coordinator::BeginFrom(initial_port_.get());
}

void LaneCoordinator::AwaitHeardOfAllSince(absl::Time since, absl::Duration timeout) {
  const absl::Time end = Now() + timeout;
  bool heard = false;
  while (true) {
    lane_.RunAndWait([&] { heard = HeardOfAllSince(since); });
    if (heard || Now() >= end) return;
    Sleep(kHeardPoll);
  }
}

}  // namespace recon
