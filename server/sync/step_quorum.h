#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace recon {

// When a synchronous step is closed without its slowest workers: so many have pushed it, and a grace has
// passed since. (Quorum and grace window: "Decoupled DiLoCo", arXiv 2604.21428; synchronous steps without the
// slowest: Chen et al., "Revisiting Distributed Synchronous SGD", 2016.)
//
// Pure: no clock, `now` is an argument; not thread-safe.
class StepQuorum {
 public:
  static constexpr absl::Duration kGraceMin = absl::Milliseconds(10);

  // All workers are waited for.
  StepQuorum() = default;
  // `workers`: so many make a quorum; 0: all. Without `grace` it is half the time that the quorum has taken
  // in the last steps, at least kGraceMin: whoever is half as slow again still counts.
  StepQuorum(uint32_t workers, std::optional<absl::Duration> grace) : workers_(workers), grace_(grace) {}

  bool on() const { return workers_ > 0; }
  // Of the first step that is open `pushed` workers have pushed everything, and `awaited` take part and have
  // not. Returns when it is to be closed without those; InfiniteFuture while it is not.
  absl::Time Note(uint64_t step, size_t pushed, size_t awaited, absl::Time now);
  absl::Duration grace() const;

 private:
  void NoteTook(absl::Duration took);

  uint32_t workers_ = 0;
  std::optional<absl::Duration> grace_;
  bool begun_ = false;
  std::optional<uint64_t> step_;
  absl::Time opened_;
  std::optional<absl::Time> reached_;   // The quorum of step_.
  std::optional<absl::Duration> took_;  // A quorum, a running mean.
};

}  // namespace recon
