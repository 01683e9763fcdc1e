#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/lane.h"
#include "server/cluster/cluster.h"
#include "server/control/ports.h"
#include "server/data_plane/param_server.h"
#include "server/recovery/initial_values.h"
#include "server/recovery/snapshot_service.h"

// The coordinator's ports onto the classes of a server. What those call back, on whichever thread, is posted
// to the control lane. All pointers outlive the ports.
namespace recon {

class ParamServerPort final : public DataPlaneControl {
 public:
  ParamServerPort(ParamServer* params, Lane* lane) : params_(params), lane_(lane) {}

  std::shared_ptr<const ParamLayout> layout() const override { return params_->layout(); }
  absl::Status DefineModel(const ModelSpec& model) override { return params_->DefineModel(model); }
  bool has_values() const override { return params_->has_values(); }
  void AwaitInitialValues(WorkerId worker, std::function<void()> ready) override;
  void AwaitState(WorkerId worker, uint64_t upload,
                  std::function<void(uint64_t step, absl::Time now)> staged) override;
  absl::Status CommitState(uint64_t upload) override { return WorkersStateOf(params_)->CommitState(upload); }
  uint64_t state_version() const override { return WorkersStateOf(params_)->state_version(); }
  void SetClusterEpoch(uint64_t epoch) override { params_->SetClusterEpoch(epoch); }
  ApplyRules rules() const override { return params_->rules(); }
  absl::Status ChangeRules(const ApplyRules& rules, uint64_t first_step, absl::Duration* took) override;
  LogUse log_use() const override;
  ParamStats GetStats() const override { return params_->GetStats(); }
  void Tick(absl::Time now) override { params_->Tick(now); }

 private:
  ParamServer* const params_;
  Lane* const lane_;
};

class SnapshotServicePort final : public Snapshots {
 public:
  SnapshotServicePort(SnapshotService* snapshots, ParamServer* params, Lane* lane)
      : snapshots_(snapshots), params_(params), lane_(lane) {}

  void Take(const std::string& reason, Done done) override;
  void TakeLast(Done done) override;
  void TakeInBackground(const std::string& reason) override;
  void RestoreState(uint64_t upload, Done done) override;
  void Tick(absl::Time now) override { snapshots_->Tick(now); }
  SnapshotStatus status() const override { return snapshots_->status(); }

 private:
  SnapshotService* const snapshots_;
  ParamServer* const params_;
  Lane* const lane_;
};

class ClusterPort final : public OtherServers {
 public:
  ClusterPort(Cluster* cluster, Lane* lane) : cluster_(cluster), lane_(lane) {}

  uint32_t servers() const override { return cluster_->servers(); }
  ServersState state() const override { return cluster_->state(); }
  std::string Missing() const override { return cluster_->Missing(); }
  void TellWaits(const std::string& waits_for) override { cluster_->TellWaits(waits_for); }
  void SetModel(const ModelSpec& model) override { cluster_->SetModel(model); }
  void BeginEpoch(uint64_t epoch) override { cluster_->BeginEpoch(epoch); }
  void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) override;
  void Expel(WorkerId worker) override { cluster_->Expel(worker); }
  void AwaitInitialValues(WorkerId worker) override { cluster_->AwaitInitialValues(worker); }
  void AwaitState(WorkerId worker, uint64_t upload,
                  std::function<void(uint32_t server, uint64_t step, absl::Time now)> staged) override;
  void Tick(absl::Time now) override { cluster_->Tick(now); }
  std::vector<ServerAddress> Addresses() const override { return cluster_->Addresses(); }
  std::vector<ServerStatus> Status(absl::Time now) const override { return cluster_->Status(now); }

 private:
  Cluster* const cluster_;
  Lane* const lane_;
};

class InitialValuesPort final : public ValuesSource {
 public:
  InitialValuesPort(InitialValues* initial, ParamServer* params, Lane* lane)
      : initial_(initial), params_(params), lane_(lane) {}

  absl::Status Check(const ModelSpec& model) const override { return initial_->Check(model); }
  void Load(std::function<void(const absl::Status& loaded)> done) override;

 private:
  InitialValues* const initial_;
  ParamServer* const params_;
  Lane* const lane_;
};

}  // namespace recon
