#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common/tensor/page.h"

namespace recon {

// The last versions of a shard's parameters, for gradients that were computed from one of them. References to
// pages: an update clones what it changes, and what it leaves alone is kept once.
//
// Threads: the shard's lane only.
class KeptVersions {
 public:
  using Pages = std::vector<PageRef>;

  // Forgets all; from now on keeps so many. 0: none.
  void Reset(uint32_t capacity);
  uint32_t capacity() const { return capacity_; }

  // Versions ascend.
  void Keep(uint64_t version, const Pages& pages);
  // No version before this one is found any more. They go as new ones come: whoever counts pages sees no
  // change.
  void Hide(uint64_t before) { first_ = before; }
  // Null if it is not there.
  const Pages* Find(uint64_t version) const;

 private:
  struct Version {
    uint64_t version = 0;
    Pages pages;
  };
  uint32_t capacity_ = 0;
  uint64_t first_ = 0;
  std::deque<Version> versions_;
};

}  // namespace recon
