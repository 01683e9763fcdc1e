#include "server/control/durable_job_record.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

absl::Status CheckSame(const char* flag, uint64_t seen, uint64_t expected) {
  if (seen == expected) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(flag, " is ", seen, ", this job was started with ", expected));
}

absl::Status CheckSamples(const char* kind, uint64_t seen, uint64_t expected) {
  if (seen == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the worker has ", seen, " ", kind, " samples, the job has ", expected));
}

}  // namespace

absl::Status DurableJobRecord::Load() {
  RECON_ASSIGN_OR_RETURN(record_, journal_->LoadJob());
  return absl::OkStatus();
}

const JobRecord& DurableJobRecord::get() const {
  RECON_CHECK(record_.has_value(), "there is no job yet");
  return *record_;
}

absl::Status DurableJobRecord::Save(const JobRecord& record) {
  RECON_RETURN_IF_ERROR(journal_->SaveJob(record));
  record_ = record;
  return absl::OkStatus();
}

absl::Status DurableJobRecord::CheckFlags(const JobConfig& job) const {
  RECON_RETURN_IF_ERROR(CheckSame("--split-samples", job.split_samples(), get().split_samples()));
  RECON_RETURN_IF_ERROR(
      CheckSame("--eval-split-samples", job.eval_split_samples(), get().eval_split_samples()));
  return CheckSame("--seed", job.seed(), get().seed());
}

absl::Status DurableJobRecord::CheckDataset(const RegisterRequest& request) const {
  RECON_RETURN_IF_ERROR(CheckSamples("training", request.train_samples(), get().train_samples()));
  RECON_RETURN_IF_ERROR(CheckSamples("test", request.test_samples(), get().test_samples()));
  const std::string& ours = get().data_fingerprint();
  if (request.data_fingerprint().empty() || ours.empty() || request.data_fingerprint() == ours) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the worker's training data is other data: its fingerprint is ",
                   request.data_fingerprint(), ", the job's is ", ours, ": all workers need the same files"));
}

absl::Status DurableJobRecord::NoteFingerprint(const std::string& fingerprint) {
  if (fingerprint.empty() || !get().data_fingerprint().empty()) return absl::OkStatus();
  JobRecord record = get();
  record.set_data_fingerprint(fingerprint);
  return Save(record);
}

absl::Status DurableJobRecord::FixStepSamples(uint64_t samples) {
  if (step_samples() != 0) return absl::OkStatus();
  JobRecord record = get();
  record.set_step_samples(samples);
  RECON_RETURN_IF_ERROR(Save(record));
  LogInfo("a step has {} samples from now on, whoever is there", samples);
  return absl::OkStatus();
}

}  // namespace recon
