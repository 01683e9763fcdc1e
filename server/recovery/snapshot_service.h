#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/lane.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/snapshot/control_state.h"
#include "common/storage/object_store.h"
#include "proto/control.pb.h"
#include "server/cluster/cluster.h"
#include "server/data_plane/param_server.h"
#include "server/durability/snapshot_writer.h"

namespace recon {

// Takes snapshots: when asked, and periodically. Training goes on meanwhile.
//
// Threads: thread-safe; encoding and writing run on a thread of its own. Snapshots are taken one at a
// time, in the order asked for.
// Shutdown: the destructor finishes those asked for.
class SnapshotService {
 public:
  struct Options {
    SnapshotWriter::Options writer;
    absl::Duration interval = absl::InfiniteDuration();
    // One is taken early when replaying the log since the last would take longer.
    absl::Duration replay_target = absl::InfiniteDuration();
    // Pages that may be cloned while a snapshot is written, as a share of the state; 1: all.
    double memory = 1;
    std::string optimizer;
    uint64_t job_id = 0;
    // What the job had come to at a cut with that sequence; may be empty. Called on the service's thread.
    std::function<absl::StatusOr<ControlState>(uint64_t sequence)> control;
  };
  using Done = absl::AnyInvocable<void(const absl::StatusOr<SnapshotReply>&)>;

  // The pointers must outlive the service. `cluster`: the other servers whose parts belong to a snapshot;
  // null if there are none.
  SnapshotService(const Options& options, ParamServer* params, ObjectStore* store, Metrics* metrics,
                  Cluster* cluster = nullptr);

  // `reason` is one word for the manifest. `done` runs on the service's thread.
  void Take(const std::string& reason, Done done, SnapshotWriter::Pace pace = SnapshotWriter::Pace::kNow);

  // Where workers have the optimizer: the newest snapshot's state of theirs takes the place of what all
  // servers have, under the number of an upload (WorkersState). `done` runs on the service's thread.
  void RestoreState(uint64_t upload, absl::AnyInvocable<void(const absl::Status&)> done);

  // Returns when all that was asked for is done.
  void Flush();

  // Starts a snapshot if one is due, by time or by the length of the log, and something was applied since the
  // last.
  void Tick(absl::Time now);

  SnapshotStatus status() const;
  // Not OK once another server has the job: this one's state is no longer the job's.
  absl::Status taken_over() const;
  // What comes along with the snapshots to come (SnapshotWriter::SetCarried()).
  void SetCarried(std::shared_ptr<const CarriedTensors> carried);
  // What a restart found, for status().
  void NoteRestored(const Manifest& manifest);

 private:
  std::optional<SnapshotReply> NothingNew(const std::string& reason) const;
  SnapshotReply ReplyOfNewest(const std::string& reason) const;
  absl::StatusOr<SnapshotReply> TakeNow(const std::string& reason, SnapshotWriter::Pace pace);
  // Nothing if the newest snapshot has all that the servers' parts have.
  absl::StatusOr<std::optional<Manifest>> WriteParts(const ParamLayout& layout, StateCut cut,
                                                     SnapshotWriter::Description description,
                                                     Generation generation, SnapshotWriter::Pace pace);
  bool NewestHas(const std::vector<ServerPart>& servers);
  absl::Status CheckStillOurs(Generation newest);
  absl::Status CheckPacks(const Manifest& part, uint64_t server) const;
  void Hurry(int change);
  void NoteUnderWay(absl::Time since);
  void NoteNewest(const Manifest& manifest);
  void NotePublished(const Manifest& manifest, double seconds, double replay_seconds);
  void SayNonFinite(const Manifest& manifest) const;

  // Set in the constructor.
  const Options options_;
  ParamServer* const params_;
  Cluster* const cluster_;
  ObjectStore* const store_;
  prometheus::Counter& published_;
  prometheus::Counter& failed_;
  prometheus::Gauge& seconds_;
  prometheus::Gauge& generation_;

  // The service's thread only.
  SnapshotWriter writer_;
  Generation last_tried_;
  Generation last_known_;  // Published or restored by this process.

  mutable Mutex mu_;
  SnapshotStatus status_ ABSL_GUARDED_BY(mu_);
  absl::Status taken_over_ ABSL_GUARDED_BY(mu_);
  absl::Time under_way_since_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();  // None is under way.
  absl::Time last_periodic_ ABSL_GUARDED_BY(mu_);
  std::optional<uint64_t> last_sequence_ ABSL_GUARDED_BY(mu_);  // Of the newest snapshot.
  // Its servers, by place, the head among them; none of a single server.
  std::vector<ServerPart> last_servers_ ABSL_GUARDED_BY(mu_);
  double replay_seconds_at_last_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Time next_try_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  bool periodic_running_ ABSL_GUARDED_BY(mu_) = false;

  Lane lane_;
};

}  // namespace recon
