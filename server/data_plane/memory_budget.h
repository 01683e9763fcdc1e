#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"

namespace recon {

// What the state, replies that workers have not taken yet, and frames under way may take of the memory.
//
// Not thread-safe: the caller serializes. No clock.
class MemoryBudget {
 public:
  // Bytes. `frames_max`: of frames that are neither applied nor answered, in a synchronous job a step's of
  // all workers. `memory`: of parameters, optimizer state and kept versions; frames get half of what these
  // leave.
  MemoryBudget(uint64_t frames_max, uint64_t memory) : frames_max_(frames_max), memory_(memory) {}

  // ResourceExhausted if a model's state, `bytes` in all, is more than there is. `versions`: as many are kept
  // for the correction of staleness.
  absl::Status CheckState(const std::string& model, uint64_t bytes, size_t versions) const;
  void SetState(uint64_t bytes) { state_ = bytes; }
  uint64_t left() const;

  // A worker whose replies may take memory. `anew`: what is held for it so far is another process'.
  void Admit(WorkerId worker, bool anew);
  void Expel(WorkerId worker) { workers_.erase(worker); }

  // A frame has come, or has gone. Hold() returns the account that it is held for; 0 if the worker has none.
  uint64_t Hold(WorkerId worker, uint64_t bytes);
  void Release(WorkerId worker, uint64_t account, uint64_t bytes);
  uint64_t held() const { return held_; }
  // ResourceExhausted if a frame of so many bytes, held already, is one too many.
  absl::Status CheckFrame(WorkerId worker, uint64_t bytes, bool synchronous) const;
  // Whether to say now that it was: now and then, as there may be thousands of them a second.
  bool MaySayOverload(absl::Time now);

 private:
  struct Account {
    uint64_t number = 0;  // No other has had it, not of the same worker either.
    uint64_t held = 0;
  };

  const uint64_t frames_max_;
  const uint64_t memory_;
  uint64_t state_ = 0;
  uint64_t held_ = 0;
  uint64_t next_number_ = 1;
  std::map<WorkerId, Account> workers_;
  absl::Time overload_said_ = absl::InfinitePast();
};

}  // namespace recon
