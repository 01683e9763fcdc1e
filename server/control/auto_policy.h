#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/job.pb.h"
#include "proto/progress.pb.h"
#include "server/control/ports.h"
#include "server/tuning/policy_tuner.h"

namespace recon {

// What --sync auto has chosen, from the choice until it is in force: a change of policy stops the job for a
// moment and may fail, and is tried again some time later. Meanwhile nothing else is chosen.
//
// Pure, but for lines in the log: no clock, `now` is an argument; not thread-safe.
class AutoPolicy {
 public:
  // Between two tries.
  static constexpr absl::Duration kRetry = absl::Seconds(30);

  // The user's settings. If they leave the policy to the server, choosing begins anew; if not, it ends.
  explicit AutoPolicy(const PolicySettings& settings) { Set(settings); }
  void Set(const PolicySettings& settings);

  // What a worker says of its steps, as PolicyTuner's.
  absl::Status Report(WorkerId worker, const StepWork& work, double loss);
  void Forget(WorkerId worker);

  // The settings that are to be put in force now, if there are any; then comes Tried(). It asks `params` for
  // what is known of pushes when that is due.
  std::optional<PolicySettings> Tick(absl::Time now, const DataPlaneControl& params, bool codec_settled);
  void Tried(const absl::Status& status, absl::Time now);

  // Why the policy is the one that is in force; empty if the user has chosen it.
  std::string reason() const { return tuner_ ? tuner_->reason() : ""; }

 private:
  // Whether the tuner has just made another choice.
  bool Choose(absl::Time now, const DataPlaneControl& params, bool codec_settled);

  PolicySettings settings_;
  std::optional<PolicyTuner> tuner_;            // None unless the settings leave it to the server.
  absl::Time due_at_ = absl::InfiniteFuture();  // When its choice is to be in force.
};

}  // namespace recon
