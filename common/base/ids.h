#pragma once

#include <cstdint>
#include <functional>
#include <ostream>
#include <utility>

namespace recon {

// An integer that does not mix with other integers. `Tag` names what it numbers.
template <typename Tag, typename Integer>
class StrongId {
 public:
  using ValueType = Integer;

  constexpr StrongId() = default;
  constexpr explicit StrongId(Integer value) : value_(value) {}

  constexpr Integer value() const { return value_; }

  friend constexpr bool operator==(StrongId a, StrongId b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(StrongId a, StrongId b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(StrongId a, StrongId b) { return a.value_ < b.value_; }
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << id.value_; }
  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Integer value_ = 0;
};

// A worker's number in the job; the same for every process that registers under one name.
using WorkerId = StrongId<struct WorkerIdTag, uint32_t>;
// A contiguous range of at most one page of the flat parameter space.
using ShardId = StrongId<struct ShardIdTag, uint32_t>;
// A range of training samples within one pass over the data.
using SplitId = StrongId<struct SplitIdTag, uint32_t>;
// One grant of a split to a worker.
using LeaseId = StrongId<struct LeaseIdTag, uint64_t>;
// A snapshot's number; grows by one with each published snapshot.
using Generation = StrongId<struct GenerationTag, uint64_t>;
// Drawn at random when a process starts; tells a restarted worker from its ghost.
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;

}  // namespace recon
