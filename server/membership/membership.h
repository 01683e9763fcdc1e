#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/progress.pb.h"

namespace recon {

// Who is in the job, and who is alive. A member that has not been heard of for a while is suspect, then
// gone; a member that is gone may come back by registering again.
//
// Threads: none of its own; the caller serializes. No clock: `now` is an argument.
class Membership {
 public:
  struct Timeouts {
    absl::Duration suspect_after;
    absl::Duration evict_after;
  };
  struct Member {
    std::string name;
    Incarnation incarnation;
    bool gone = false;
    std::string gone_why;  // As people read it.
    absl::Time last_heard;
    WorkerProgress progress;
    std::string device;
    std::string codec;
    std::string serves_parameters;  // As it registered.
    bool simulated = false;
    uint64_t next_step = 0;  // As it registered: the first step that it has no acknowledgement for.
    bool computes = false;   // Its process has computed a batch of this job.
    std::string peer;        // From where it registered, as people read it; empty if unknown.
    std::string rival_peer;  // From where a process has asked last that waits for its name; empty: none has.
    Incarnation rival;       // Of which NoteRival() has told last; 0: of none.
    absl::Time rival_told_at = absl::InfinitePast();
  };

  explicit Membership(const Timeouts& timeouts) : timeouts_(timeouts) {}

  // Makes the worker a member, or renews it. A process with another incarnation takes the name over:
  // its holder is refused from then on. AlreadyExists for a process whose name was taken over;
  // ResourceExhausted beyond limits::kMembersMax.
  absl::Status Admit(WorkerId worker, const Member& member, absl::Time now);

  // FailedPrecondition unless the worker is a member, not gone, under this incarnation. AlreadyExists if
  // its name was taken over by another process. Renews it.
  absl::Status Hear(WorkerId worker, Incarnation incarnation, absl::Time now);

  // Nobody could be heard of meanwhile.
  void Excuse(absl::Time now);

  // It left in good order, or is known to be dead.
  void Remove(WorkerId worker);

  // Marks those not heard of for evict_after as gone; returns those it marked now.
  std::vector<WorkerId> Expire(absl::Time now);

  const std::map<WorkerId, Member>& members() const { return members_; }
  Member* Find(WorkerId worker);
  const Member* Find(WorkerId worker) const;
  int alive() const;
  // Whether any of those alive has computed a batch.
  bool AnyComputes() const;
  bool suspect(const Member& member, absl::Time now) const {
    return !member.gone && now - member.last_heard > timeouts_.suspect_after;
  }
  // Whether another process than `incarnation` has the name and was heard of lately.
  bool HeldByAnother(WorkerId worker, Incarnation incarnation, absl::Time now) const;
  // Another process, at `peer`, waits for the name of this member; true when that is to be told: of the first
  // at once, of another than the last a minute later.
  bool NoteRival(WorkerId worker, Incarnation rival, const std::string& peer, absl::Time now);

 private:
  // Makes room for one: those that are gone are only shown.
  void DropOldestGone();
  void NoteSuperseded(Incarnation incarnation, const std::string& by);
  // Whether another process has the name that this one had.
  absl::Status CheckNotTakenOver(const std::string& name, Incarnation incarnation) const;

  Timeouts timeouts_;
  std::map<WorkerId, Member> members_;
  // Processes whose name another one took over: from where that registered.
  std::map<Incarnation, std::string> superseded_;
  std::deque<Incarnation> superseded_in_order_;
};

}  // namespace recon
