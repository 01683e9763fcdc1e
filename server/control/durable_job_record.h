#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/config.pb.h"
#include "proto/control.pb.h"
#include "proto/job.pb.h"
#include "server/control/ports.h"

namespace recon {

// What the job was started with. It is always as the journal has it: a change that cannot be made durable is
// not made.
//
// Threads: none of its own; the caller serializes. Blocks as long as the journal does. The journal outlives
// it.
class DurableJobRecord {
 public:
  explicit DurableJobRecord(Journal* journal) : journal_(journal) {}

  // Takes up what the journal has, if anything.
  absl::Status Load();
  // The job begins with this.
  absl::Status Begin(const JobRecord& record) { return Save(record); }
  bool known() const { return record_.has_value(); }
  // The job has begun.
  const JobRecord& get() const;

  // FailedPrecondition, naming the flag, if the server's flags are not those that the job was started with.
  absl::Status CheckFlags(const JobConfig& job) const;
  // InvalidArgument, with both numbers, if the worker has other data than the job.
  absl::Status CheckDataset(const RegisterRequest& request) const;

  // The first fingerprint of the data that a worker says is the job's; an empty one says nothing.
  absl::Status NoteFingerprint(const std::string& fingerprint);
  // How many samples a step has for good, if that is not fixed yet.
  absl::Status FixStepSamples(uint64_t samples);
  // 0: not fixed.
  uint64_t step_samples() const { return record_ ? record_->step_samples() : 0; }

 private:
  absl::Status Save(const JobRecord& record);

  Journal* const journal_;
  std::optional<JobRecord> record_;
};

}  // namespace recon
