#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "proto/cluster.pb.h"
#include "server/cluster/server_links.h"

namespace recon {

// The parts that the other servers have in a snapshot of the whole job: it is begun, the servers are told
// where the cut is, their parts are waited for, and it is published. A server that goes meanwhile fails it:
// when it is back it may go on from the snapshot before.
//
// Each is an attempt with a number of its own, so that a part that somebody has asked for before is none of
// this one's. One at a time.
//
// Threads: thread-safe. Its lock may be taken under that of the links.
class SnapshotParts {
 public:
  // `links` outlives this, and may still be made.
  explicit SnapshotParts(ServerLinks* links) : links_(links) {}

  // Unavailable if a server is not there, FailedPrecondition if one has no parameters yet.
  absl::Status Begin(uint64_t generation);
  // Called where the cut has its place among all closings, under whatever lock gives them their order.
  void SendCut(bool background);
  // Waits for the parts of all; they are in the order of places. Unavailable if a server goes meanwhile, or
  // has failed to write its part.
  absl::StatusOr<std::vector<SnapshotPart>> Collect();
  // Just before it is published: not OK if a server was lost since, which may go on from the snapshot before.
  absl::Status End();
  // It is published: the servers may forget what only older ones need.
  void NotePublished();
  // A restart goes on from this snapshot.
  void NoteRestored(const Manifest& manifest);
  // So many more wait for a snapshot, or fewer.
  void Hurry(int change) { links_->Hurry(change); }

  // A server's part has come; one of another attempt is left alone.
  void Note(uint32_t place, const SnapshotPart& part);
  // The snapshot under way, if there is one, fails.
  void GiveUp(const absl::Status& why);

 private:
  ServerLinks* const links_;

  Mutex mu_;
  uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;  // 0: none is under way.
  uint64_t attempt_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<uint32_t, SnapshotPart> parts_ ABSL_GUARDED_BY(mu_);  // By place.
  std::map<uint32_t, uint64_t> sequences_ ABSL_GUARDED_BY(mu_);  // Of those that were collected, by place.
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

}  // namespace recon
