#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/pool_allocator.h"
#include "server/sync/closed_steps.h"
#include "server/sync/staleness_gate.h"
#include "server/sync/step_closing.h"
#include "server/sync/step_quorum.h"

namespace recon {

// The steps of a job as one of its servers knows them: what has come of each worker's pushes, whose pushes
// count in a synchronous step, and when it is closed for which shards.
//
// One server decides for all (the head): it hears of the parts that others have, and closes steps. The others
// follow: what they are told about closings and the frontier comes in its order.
// Parts that are on their way to a shard are told of when they have come; what the shard makes of them is the
// shard's (PushOutcome).
//
// Pure: no clock, `now` is an argument; not thread-safe.
class StepBook {
 public:
  enum class Authority { kDecides, kFollows };

  // `bound`: as StalenessGate's. `closed`: of the model's shards; what is closed here is noted there. It
  // outlives the book.
  StepBook(int bound, Authority authority, ClosedSteps* closed)
      : authority_(authority), gate_(bound, 0), closed_(*closed) {}

  // Who follows only needs to know whether there is one.
  void SetQuorum(const StepQuorum& quorum) { quorum_ = quorum; }

  // When steps are closed for all, and who takes part.
  const StalenessGate& gate() const { return gate_; }
  // The step is closed for this shard, or will never be.
  bool Closed(uint64_t step, uint32_t shard) const {
    return step < closed_.first_open(shard) || step < gate_.frontier();
  }

  // A worker whose pushes are taken from now on; see StepMembers' methods of these names.
  void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step);
  void Expel(WorkerId worker);
  uint64_t Activate(WorkerId worker, uint64_t next_step, bool resumes);
  void Deactivate(WorkerId worker);
  // False, with nothing changed, unless the job is synchronous and no push of the worker's has come in part.
  bool Park(WorkerId worker);
  // Whether a push of that step by the worker may count: it had come whole when the worker was parked, or is
  // of a step that it may push since it came back.
  bool Takes(WorkerId worker, uint64_t step) const;
  void NoteAcknowledged(WorkerId worker, uint64_t next_step);
  void SkipTo(uint64_t frontier);
  // As StalenessGate's.
  void Follow(uint64_t frontier, bool anyone_active) { gate_.Follow(frontier, anyone_active); }
  uint64_t late_steps(WorkerId worker) const;

  // A push of these shards may come: Aborted if the step does not wait for its worker, InvalidArgument if it
  // is too far ahead.
  absl::Status CheckStep(WorkerId worker, uint64_t step, absl::Span<const uint32_t> shards) const;
  // Parts of a synchronous step have come, as the log's record `sequence`. True if its shards close one by
  // one from now on, as all workers push that step, or have; never with a quorum, which counts whole pushes.
  bool NoteBegun(WorkerId worker, Incarnation incarnation, uint64_t step, uint64_t sequence);
  // Whether all that these shards have of a push counts, or still may: Aborted if it does not, Unavailable if
  // its step is just being closed.
  absl::Status CheckCounts(WorkerId worker, uint64_t step, absl::Span<const uint32_t> shards,
                           absl::Span<const PushOutcome> outcomes) const;
  // These shards have their parts of a push, which has parts for `all` shards, `here` of them on this server.
  // True if that makes it whole: for who decides all of it, for who follows what is here.
  bool NoteParts(WorkerId worker, Incarnation incarnation, uint64_t step, absl::Span<const uint32_t> shards,
                 size_t all, size_t here);
  // Parts that another server reports are of a step that may be.
  bool MayReport(WorkerId worker, Incarnation incarnation, uint64_t step) const;
  // Whether the reply to a push of these shards may go out.
  bool MayAnswer(uint64_t step, absl::Span<const uint32_t> shards) const;

  // Synchronous steps that are complete now, for the shards for which they are; each is noted as closed.
  // After any of the calls above.
  std::vector<StepClosing> TakeClosings();
  // When the open step is to be closed without those who are awaited; InfiniteFuture: not.
  absl::Time WatchQuorum(absl::Time now);
  // A quorum's grace is over: those who are awaited are parked. They are returned.
  std::vector<WorkerId> ParkLate();

  // These shards have nothing any more of steps that are not closed: their server has begun anew.
  void ForgetPartsOf(absl::Span<const uint32_t> shards);

  // Steps go on under another bound from the first that nobody has begun, or `first_step` if that is later,
  // which is returned. Parts of steps that are not closed are forgotten: their workers send them again.
  uint64_t BeginAnew(int bound, uint64_t first_step);

 private:
  // Those that have their parts of a push.
  using Shards = absl::flat_hash_set<uint32_t, absl::flat_hash_set<uint32_t>::hasher, std::equal_to<uint32_t>,
                                     PoolAllocator<uint32_t>>;
  struct Worker {
    Incarnation incarnation;
    // No step waits for it, and what it begins to push counts in none, until Activate().
    bool parked = false;
    uint64_t first_step = 0;  // That it may push, since it was parked last.
    // Steps, from and before: its pushes of them were complete when it was parked, and count.
    std::vector<std::pair<uint64_t, uint64_t>> kept;
    uint64_t next_pushed = 0;  // Its last push that is complete is of the step before.
    uint64_t late_steps = 0;   // Closed without it, for a quorum was there.
    int late_in_a_row = 0;     // Of those, since a push of it has counted.
    // First step of which nothing has come here.
    uint64_t next_begun = 0;
    // Pushes that are not complete, by step.
    std::map<uint64_t, Shards, std::less<uint64_t>, PoolAllocator<std::pair<const uint64_t, Shards>>>
        delivered;
  };

  bool decides() const { return authority_ == Authority::kDecides; }
  // The worker's contributions to steps that are not closed count in none.
  void ForgetContributions(WorkerId worker);
  void TakeComplete(uint64_t step, const std::vector<uint32_t>& shards, std::vector<StepClosing>* closings);
  uint64_t FirstStepNobodyHasBegun() const;
  // Any step may be complete now: the gate has moved in another way than by a push.
  void LookAtAll() { looked_at_ = std::nullopt; }

  const Authority authority_;
  StalenessGate gate_;
  StepQuorum quorum_;
  ClosedSteps& closed_;
  std::map<WorkerId, Worker> workers_;
  // Who decides: who has contributed so far, by step and shard, to shards of the whole model.
  std::map<uint64_t, std::map<uint32_t, std::set<Contributor>>> contributed_;
  // What may be complete now; all of it if the frontier is not `looked_at_`, that of TakeClosings() before.
  std::map<uint64_t, std::vector<uint32_t>> touched_;
  std::optional<uint64_t> looked_at_;
};

}  // namespace recon
