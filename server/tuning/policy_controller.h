#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace recon {

// Chooses how the workers of a job agree (--sync auto). It begins where little can go wrong, with a small
// staleness bound, and loosens step by step, each time for a reason it has measured: the bound goes when
// workers wait for slower ones; gradients give way to local steps, ever more of them, when workers wait for
// the link in spite of what the codec can do. For some windows after a step it watches the loss; when that
// rises, it goes back to where it was, and does not try that step again.
//
// Pure: no clock; not thread-safe.
class PolicyController {
 public:
  struct Limits {
    int bound_max = -1;  // The highest staleness bound it may set, as StalenessGate's: -1 is no bound.
    uint32_t local_steps_max = 0;  // 0: gradients are always pushed.
  };
  struct Choice {
    int bound = -1;
    uint32_t local_steps = 0;

    bool operator==(const Choice& other) const {
      return bound == other.bound && local_steps == other.local_steps;
    }
  };
  // What the workers' steps were like for a while.
  struct Window {
    double fastest_seconds = 0;  // Computing a step, on average: the fastest worker
    double slowest_seconds = 0;  // and the slowest.
    // Of the workers' time, on average: waiting until slower workers had pushed,
    double waiting_share = 0;
    // and waiting for pushes under way for any other reason.
    double link_share = 0;
    // Whether the codec is what it will be.
    bool codec_settled = true;
    double staleness = 0;  // Updates, the mean over pushes.
    double loss = 0;       // The mean of batches.
  };

  explicit PolicyController(const Limits& limits);

  const Choice& choice() const { return ladder_[rung_]; }
  // All that it may choose, from the most cautious on.
  const std::vector<Choice>& ladder() const { return ladder_; }
  // Why it is this one, in a sentence with the numbers.
  const std::string& reason() const { return reason_; }

  // Takes a window that was measured under choice(); true if choice() has changed.
  bool Observe(const Window& window);

 private:
  bool MoveTo(size_t rung, std::string reason);
  // After a step: whether it has to be taken back.
  bool LossHasRisen(const Window& window);
  // Where it would go next because of what it waits for; rung_ if nowhere.
  size_t Wanted(const Window& window, std::string* why) const;

  std::vector<Choice> ladder_;
  size_t rung_ = 0;
  size_t highest_;     // Beyond it the loss has risen.
  size_t wanted_ = 0;  // And for how many windows it has been.
  int windows_wanted_ = 0;
  // While the last step is watched: where it came from, and what the loss was there.
  int windows_watched_ = 0;  // How many are left.
  int windows_risen_ = 0;
  size_t before_ = 0;
  double loss_before_ = 0;
  std::deque<double> losses_;  // Of the last windows on this rung.
  std::optional<double> first_loss_;
  std::string reason_ = "to begin with";
};

}  // namespace recon
