#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "common/base/ids.h"

namespace recon {

// Who takes part in the steps of a job, as whoever decides it tells the data plane. A worker must be admitted
// before its frames are taken.
//
// Threads: thread-safe in a ParamServer. It does not block.
class StepMembers {
 public:
  virtual ~StepMembers() = default;
  // `next_step`: the first step that the worker has no acknowledgement for.
  virtual void Admit(WorkerId worker, Incarnation incarnation, uint64_t next_step) = 0;
  virtual void Expel(WorkerId worker) = 0;
  // Others wait for it from now on. Returns the first step it may push: not one that others have closed in
  // part, unless it `resumes` a push that it has begun and
  // that may count still.
  virtual uint64_t Activate(WorkerId worker, uint64_t next_step, bool resumes) = 0;
  // Nobody waits for it.
  virtual void Deactivate(WorkerId worker) = 0;
  // Whether others wait for it.
  virtual bool active(WorkerId worker) const = 0;
  // Whether they do just now: the first step that is not closed has no push of it yet.
  virtual bool awaited(WorkerId worker) const = 0;
  // No step waits for it: pushes that it begins are answered with Aborted until it is activated; those that
  // are complete count. Nothing happens in a job that is not synchronous, or if a push has come in part.
  virtual void Park(WorkerId worker) = 0;
  // From now on a synchronous step is closed without those whose push is awaited when `workers` have pushed
  // it and `grace` has passed (StepQuorum): they are parked. 0: all are waited for. The head closes steps;
  // the others know by it that steps close as a whole.
  virtual void SetQuorum(uint32_t workers, std::optional<absl::Duration> grace) = 0;
  // The worker has an acknowledgement of every step before `next_step`.
  virtual void NoteAcknowledged(WorkerId worker, uint64_t next_step) = 0;
  // No step before `frontier` is asked of anyone: another server has come so far.
  virtual void SkipTo(uint64_t frontier) = 0;
  // First synchronous step that is not closed in the log.
  virtual uint64_t frontier() const = 0;
  // Pushes that have come whole of this worker since it was admitted; 0 if it is not.
  virtual uint64_t PushesOf(WorkerId worker) const = 0;
  // Whether it is the process of a worker that is admitted, or one whose pushes a restart has found: such a
  // one sends again what it has no reply to, before it is admitted.
  virtual bool Knows(Incarnation process) const = 0;
};

}  // namespace recon
