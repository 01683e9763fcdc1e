#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"

namespace recon {

// What a job needs to go on besides its parameters: what it is, its workers' numbers, the splits that are
// completed, and the policy that was set. Snapshots and the push log have it, so that the control database
// can be lost.
struct ControlState {
  // Kind, data epoch, split.
  using SplitKey = std::tuple<int, uint32_t, uint32_t>;
  static SplitKey KeyOf(const Completion& completion) {
    return {completion.kind(), completion.data_epoch(), completion.split()};
  }

  std::optional<JobRecord> job;
  std::map<std::string, uint32_t> workers;  // Name to number, from 1.
  std::map<SplitKey, Completion> completions;
  // That was set while the job ran; empty if none is in force.
  PolicyRecord policy;
};

// Pure functions. As a manifest has it; without the job's model.
ControlColumns EncodeControl(const ControlState& state);
// `model` is the manifest's. DataLoss, naming the column, if columns are not of one length, or numbers are
// out of range.
absl::StatusOr<ControlState> DecodeControl(const ControlColumns& columns, const ModelSpec& model);
// Whether it can be decoded, without the memory that it would take.
absl::Status CheckControl(const ControlColumns& columns);

std::string EncodeControlRecord(const WorkerNumber& worker);
std::string EncodeControlRecord(const Completion& completion);
std::string EncodeControlRecord(const JobRecord& job);
std::string EncodeControlRecord(const PolicyRecord& policy);
// Adds what a record of the push log says to `state`; nothing if that is known already. DataLoss if it is no
// such record or says something else than is known (a policy may be another than before).
absl::Status AddControlRecord(absl::string_view record, ControlState* state);

}  // namespace recon
