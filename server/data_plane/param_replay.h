#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/base/byte_chain.h"
#include "common/optim/apply_rules.h"
#include "server/durability/push_log.h"
#include "server/sync/step_closing.h"

namespace recon {

// Brings a restored state up to date, record by record, in the order of the log.
//
// Threads: one, before frames come. It blocks while too much is under way.
class ParamReplay {
 public:
  virtual ~ParamReplay() = default;

  // `rules` of the records that follow.
  virtual void BeginReplay(const ApplyRules& rules) = 0;
  // DataLoss for a record that is none of this model's, FailedPrecondition for another optimizer's.
  virtual absl::Status ReplayFrame(uint64_t sequence, const ByteChain& payload) = 0;
  virtual absl::Status ReplayClosing(uint64_t sequence, const StepClosing& closing) = 0;
  virtual void ReplayFreeze(uint64_t sequence) = 0;
  virtual void ReplayControl(uint64_t sequence) = 0;
  // Returns when all records are applied.
  virtual void EndReplay() = 0;

  // Records to come of these pushes change nothing, as if they had never been sent; until BeginHistory().
  virtual void LeaveOut(LoggedPushes pushes) = 0;
  // A rollback: records go on after `sequence`, the last of the history before, and synchronous steps from
  // `first_step`, which nobody has begun; what was kept of earlier ones is dropped. After EndReplay().
  virtual void BeginHistory(uint64_t sequence, uint64_t first_step) = 0;
};

}  // namespace recon
