#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "common/base/lane.h"
#include "proto/cluster.pb.h"
#include "server/data_plane/param_server.h"
#include "server/durability/snapshot_writer.h"

namespace recon {

// Writes a follower's parts of snapshots, when the head says where they are cut.
//
// Threads: thread-safe; encoding and writing run on a lane of its own, one part at a time.
// Shutdown: the destructor finishes the parts that were asked for.
class PartWriter {
 public:
  // What the head is told. Any thread.
  using Report = std::function<void(ServerReport)>;

  // `params` has its model, and outlives this, as does what `report` uses. `memory`: pages that may be cloned
  // while a part is written, as a share of the state; 1: all.
  PartWriter(ParamServer* params, std::unique_ptr<SnapshotWriter> writer, double memory, Report report)
      : params_(params), writer_(std::move(writer)), memory_(memory), report_(std::move(report)) {}
  ~PartWriter();

  // Before anything is cut: the snapshot whose part was restored.
  void NoteRestored(const Manifest& manifest) { writer_->NoteRestored(manifest); }

  void Cut(const CutCommand& command);
  // The snapshot of that attempt has been published.
  void NotePublished(uint64_t attempt);
  // So many wait for a snapshot now.
  void Hurry(int waiting) { writer_->Hurry(waiting - hurry_.exchange(waiting)); }
  // Runs `work` when the parts that were asked for are written.
  void Post(std::function<void()> work) { lane_.Post(std::move(work)); }

  // Of the log that the newest snapshot has made needless.
  double replay_seconds_before() const { return replay_seconds_before_.load(); }

 private:
  void Write(const CutCommand& command, StateCut cut);

  // Set in the constructor.
  ParamServer* const params_;
  const std::unique_ptr<SnapshotWriter> writer_;
  const double memory_;
  const Report report_;

  std::atomic<int> hurry_{0};
  std::atomic<double> replay_seconds_before_{0};

  // Lane only: the part that was written last.
  std::optional<SnapshotPart> last_part_;
  double last_part_replay_seconds_ = 0;

  Lane lane_{"snapshot"};
};

}  // namespace recon
