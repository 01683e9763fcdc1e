#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "proto/cluster.pb.h"
#include "proto/control.pb.h"
#include "server/cluster/links.h"
#include "server/cluster/servers_state.h"

namespace recon {

// The links to the servers that have a place, how far each of them is, and what each has to be told: in the
// order in which it is said here, to all or to one.
//
// A server first restores its state (assigned), then waits for the others (ready), then begins an epoch with
// them (live). Only those that are live hear what is said to all. What the others miss is said anew when they
// begin an epoch: by whoever said it, but for closings of steps. Those are kept for each place until its
// server has them in its log.
//
// Threads: thread-safe. Its lock may be taken under the ParamServer's.
class ServerLinks {
 public:
  // The server of that place has gone, or another has come in its place. Called under the lock: must not call
  // back.
  using OnLost = std::function<void(uint32_t place)>;

  // `servers`: of the job, the head among them.
  ServerLinks(uint32_t servers, OnLost on_lost);

  // From now on counts how long places are without a server.
  void Start(absl::Time now);
  // The server at the end of this link has the place. Returns the link that had it, to be closed.
  std::shared_ptr<ServerLink> Connect(uint32_t place, const std::shared_ptr<ServerLink>& link,
                                      const ServerHello& hello, absl::Time now);
  // Tells the server of one place, or of each, what it has to restore.
  void Assign(uint32_t place, const Assignment& assignment);
  void AssignAll(const Assignment& assignment);
  // 0: it has none.
  uint32_t PlaceOf(const ServerLink* link) const;
  // What a report says of its server; returns its place, 0 if it has none. InvalidArgument if what it says
  // cannot follow what it has said before: nothing of it is noted.
  absl::StatusOr<uint32_t> Note(const ServerLink* link, const ServerReport& report, absl::Time now);
  // False, with nothing noted, if nobody has asked that server.
  bool NoteReady(const ServerLink* link, const ServerReady& ready);
  bool NoteValues(const ServerLink* link, uint64_t round);
  // A place whose link has ended.
  struct Dropped {
    uint32_t place = 0;  // 0: it had none.
    std::string address;
    // Why its process has ended in good order; empty: it has not said that it would.
    std::string stopped_why;
  };
  Dropped Drop(const ServerLink* link, absl::Time now);
  // Those that have said nothing for longer than that.
  std::vector<std::shared_ptr<ServerLink>> Silent(absl::Time now, absl::Duration longer_than) const;
  // A place without a server.
  struct Gap {
    uint32_t place = 0;
    absl::Time since;
    // Records of its server's log, as far as that has reported, which the newest snapshot lacks; none: that
    // is not known.
    std::optional<uint64_t> unsaved;
  };
  std::vector<Gap> Gaps() const;

  // To all that are live, which have the state of the workers from then on that the command says, if it says
  // one; to all that have a place and are connected.
  void Broadcast(const ServerCommand& command);
  void SendToAll(const ServerCommand& command);
  // Says what those who are ready have missed, and begins `epoch` with all.
  void BeginEpoch(uint64_t epoch);
  // None of them has initial values until it has said so for this call.
  void AwaitInitialValues(WorkerId worker);
  // A StepClosing, as the push log has it.
  void Close(uint32_t place, uint64_t step, const std::string& closing);
  void MoveFrontier(const Frontier& frontier);
  void Hurry(int change);
  // A snapshot with their parts of that attempt is published, which have these sequences, by place. Without
  // an attempt a process before this one has published it.
  void NotePublished(std::optional<uint64_t> attempt, const std::map<uint32_t, uint64_t>& sequences);
  // Tells all to drain, and waits for those that are live. False if some have not done so in time.
  bool Drain(absl::Duration timeout);

  ServersState state() const;
  // Which servers are away, silent or not at work yet, where they are and since when, as clauses that a
  // sentence can end with; empty if there is nothing to be said of any.
  std::string Missing(absl::Time now) const;
  // Of each place from 1 on, as its server said last.
  std::vector<ServerHello> Hellos() const;
  // Of each place from 1 on, but for its shards.
  std::vector<ServerStatus> Status(absl::Time now) const;

 private:
  enum class State { kAwaited, kAssigned, kReady, kLive };
  struct Place {
    std::shared_ptr<ServerLink> link;
    State state = State::kAwaited;
    ServerHello hello;
    ServerReady ready;
    ServerProgress progress;         // On this link, or the last one.
    std::optional<uint64_t> newest;  // Sequence of its part of the newest snapshot.
    bool drained = false;
    std::string stopped_why;                        // As Dropped has it.
    std::multimap<uint64_t, std::string> closings;  // By step: those that may not be in its log.
    absl::Time last_heard = absl::InfinitePast();   // Of a link; or when it was lost.
  };

  uint32_t Find(const ServerLink* link) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Lose(uint32_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(uint32_t place, Assignment assignment) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendToLive(const ServerCommand& command) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SayMissed(Place* place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The clause of one place; empty if there is none.
  std::string AboutMissing(uint32_t place, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllAtLeast(State state) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint32_t servers_;
  const OnLost on_lost_;

  mutable Mutex mu_;
  std::vector<Place> places_ ABSL_GUARDED_BY(mu_);  // Element 0 is the head: unused but for its being there.
  std::optional<Frontier> frontier_ ABSL_GUARDED_BY(mu_);
  uint64_t initial_values_round_ ABSL_GUARDED_BY(mu_) = 0;
  int hurry_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace recon
