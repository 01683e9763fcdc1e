#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/config.pb.h"
#include "proto/job.pb.h"
#include "server/control/ports.h"
#include "server/membership/membership.h"

namespace recon {

// How a job comes to its parameters. Its model is that of the first worker; their initial values are sent by
// one worker, or come from a source such as another job's snapshot; and a snapshot of them is published
// before any work is given out, so that a job that has begun can always be restored.
//
// Threads: none of its own; the caller serializes. It is called back by ports, so it does not move. Time is
// an argument.
class JobParameters {
 public:
  // `snapshot_ended` is called when a snapshot that was taken here is published, or has failed. All that the
  // ports are outlives this.
  JobParameters(const CoordinatorPorts& ports, std::function<void()> snapshot_ended);
  JobParameters(const JobParameters&) = delete;
  JobParameters& operator=(const JobParameters&) = delete;

  // The initial values come from there; before a model is known.
  void BeginFrom(ValuesSource* initial) { initial_ = initial; }
  // When all servers are there, a snapshot has to come before anything else: this server's log goes on from
  // it.
  void RequireSnapshot() { must_snapshot_ = true; }

  // The model of the job that a data directory holds. FailedPrecondition if the parameters there are of
  // another one.
  absl::Status Restore(const ModelSpec& model, const JobConfig& job);
  // The model of a worker: it becomes the job's, if there is none yet. InvalidArgument if it is another one
  // than the job's, or none that can be trained as `job` says.
  absl::Status Adopt(const ModelSpec& model, const JobConfig& job);

  // On every server.
  bool HasValues() const;
  // There is a snapshot.
  bool saved() const { return ports_.snapshots->status().generation() != 0; }
  bool awaits_snapshot() const { return must_snapshot_; }
  // Whether initial values are to come from a worker: of a new job only. A server that is away has some, and
  // comes back with them; a source's are being read. `started`: work has been given out.
  bool NeedsWorkersValues(bool started) const;
  // Asks the worker for them. False if another one, who is there, has been asked.
  bool AskWorker(WorkerId worker, const Membership& membership, uint64_t cluster_epoch);

  // All servers have begun the epoch: they may have values now. `started`: as above.
  void OnServersLive(bool started);
  // A new cluster epoch has begun with all servers.
  void OnEpochBegun();
  // The worker who was asked last.
  std::optional<WorkerId> asked() const { return asked_; }
  // Tries again what has failed.
  void Tick(absl::Time now);

  // Not OK once the source's values could not be read.
  absl::Status failure() const { return failure_; }

 private:
  absl::Status Define(const ModelSpec& model);
  void LoadInitialValues();
  void OnInitialValues();
  void TakeSnapshot();
  // Says so in the log, if the push log is small beside the model.
  void WarnOfSmallLog() const;

  const CoordinatorPorts ports_;
  const std::function<void()> snapshot_ended_;
  ValuesSource* initial_ = nullptr;  // Null: a worker has them.
  std::optional<WorkerId> asked_;
  uint64_t asked_in_epoch_ = 0;  // In which all servers were told of it.
  bool must_snapshot_ = false;
  absl::Time snapshot_retry_at_ = absl::InfiniteFuture();
  absl::Status failure_;
};

}  // namespace recon
