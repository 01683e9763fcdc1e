#include "common/snapshot/control_state.h"

#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/base/data_epoch.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

absl::Status CheckWorker(const WorkerNumber& worker) {
  if (worker.name().empty() || worker.name().size() > limits::kNameBytesMax || worker.number() == 0) {
    return absl::DataLossError(absl::StrCat("control state: worker number ", worker.number(),
                                            " has a name of ", worker.name().size(), " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckCompletion(const Completion& completion) {
  if (completion.kind() != LEASE_TRAIN && completion.kind() != LEASE_EVAL) {
    return absl::DataLossError(
        absl::StrCat("control state: completed split of kind ", static_cast<int>(completion.kind())));
  }
  if (completion.begin() >= completion.end() || completion.end() > limits::kSamplesMax) {
    return absl::DataLossError(absl::StrCat("control state: completed split of samples ", completion.begin(),
                                            " to ", completion.end(), ", allowed are ", limits::kSamplesMax));
  }
  if (completion.worker().size() > limits::kNameBytesMax) {
    return absl::DataLossError(
        absl::StrCat("control state: worker's name of ", completion.worker().size(), " bytes"));
  }
  return absl::OkStatus();
}

// Differences of any two numbers, wrapping.
int64_t Gap(uint64_t from, uint64_t to) { return static_cast<int64_t>(to - from); }
uint64_t Beyond(uint64_t from, int64_t gap) { return from + static_cast<uint64_t>(gap); }

absl::Status CheckLengths(const CompletedPass& pass) {
  const int splits = pass.split_gap_size();
  const int evals = pass.kind() == LEASE_EVAL ? splits : 0;
  if (pass.begin_gap_size() != splits || pass.samples_size() != splits || pass.process_size() != splits ||
      pass.unix_ms_gap_size() != splits || pass.eval_size() != evals) {
    return absl::DataLossError(
        absl::StrCat("control state: a pass of ", splits, " splits has ", pass.begin_gap_size(), " begins, ",
                     pass.samples_size(), " numbers of samples, ", pass.process_size(), " processes, ",
                     pass.unix_ms_gap_size(), " times and ", pass.eval_size(), " evaluations"));
  }
  return absl::OkStatus();
}

// Calls `visit` with every completion, in the order of ControlState.
absl::Status ForEachCompletion(const ControlColumns& columns,
                               absl::FunctionRef<void(Completion completion)> visit) {
  uint64_t splits = 0;
  for (const CompletedPass& pass : columns.passes()) splits += static_cast<uint64_t>(pass.split_gap_size());
  if (splits > 2 * limits::kSplitsMax) {  // Of training and of evaluations.
    return absl::DataLossError(
        absl::StrCat("control state: ", splits, " completed splits, allowed are ", 2 * limits::kSplitsMax));
  }
  std::pair<int, uint32_t> pass_before{-1, 0};
  for (const CompletedPass& pass : columns.passes()) {
    RECON_RETURN_IF_ERROR(CheckLengths(pass));
    const std::pair<int, uint32_t> number{pass.kind(), pass.data_epoch()};
    if (number <= pass_before) {
      return absl::DataLossError(absl::StrCat("control state: data epoch ",
                                              ShownDataEpoch(pass.data_epoch(), pass.kind() == LEASE_TRAIN),
                                              " is there twice, or not in order"));
    }
    pass_before = number;
    uint64_t next_split = 0;
    uint64_t end = 0;
    uint64_t unix_ms = 0;
    for (int i = 0; i < pass.split_gap_size(); ++i) {
      const uint64_t split = next_split + pass.split_gap(i);
      if (split > UINT32_MAX || pass.process(i) >= static_cast<uint32_t>(columns.processes_size())) {
        return absl::DataLossError(absl::StrCat("control state: split ", split, " by process ",
                                                pass.process(i), " of ", columns.processes_size()));
      }
      const WorkerProcess& process = columns.processes(static_cast<int>(pass.process(i)));
      Completion completion;
      completion.set_kind(pass.kind());
      completion.set_data_epoch(pass.data_epoch());
      completion.set_split(static_cast<uint32_t>(split));
      completion.set_begin(Beyond(end, pass.begin_gap(i)));
      completion.set_end(completion.begin() + pass.samples(i));
      completion.set_worker(process.name());
      completion.set_incarnation(process.incarnation());
      completion.set_unix_ms(static_cast<int64_t>(Beyond(unix_ms, pass.unix_ms_gap(i))));
      if (pass.kind() == LEASE_EVAL) *completion.mutable_eval() = pass.eval(i);
      RECON_RETURN_IF_ERROR(CheckCompletion(completion));
      next_split = split + 1;
      end = completion.end();
      unix_ms = static_cast<uint64_t>(completion.unix_ms());
      visit(std::move(completion));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWorkers(const ControlColumns& columns) {
  std::set<uint32_t> numbers;
  std::string before;
  for (const WorkerNumber& worker : columns.workers()) {
    RECON_RETURN_IF_ERROR(CheckWorker(worker));
    if (worker.name() <= before || !numbers.insert(worker.number()).second) {
      return absl::DataLossError(absl::StrCat("control state: worker ", worker.name(), " or its number ",
                                              worker.number(), " is there twice, or not in order"));
    }
    before = worker.name();
  }
  return absl::OkStatus();
}

}  // namespace

ControlColumns EncodeControl(const ControlState& state) {
  ControlColumns columns;
  if (state.job) {
    *columns.mutable_job() = *state.job;
    columns.mutable_job()->clear_model();
  }
  for (const auto& [name, number] : state.workers) {
    WorkerNumber* worker = columns.add_workers();
    worker->set_name(name);
    worker->set_number(number);
  }
  if (state.policy.has_set()) *columns.mutable_policy() = state.policy;
  std::map<std::pair<std::string, uint64_t>, uint32_t> processes;
  CompletedPass* pass = nullptr;
  uint64_t next_split = 0;
  uint64_t end = 0;
  uint64_t unix_ms = 0;
  for (const auto& [key, completion] : state.completions) {
    if (pass == nullptr || pass->kind() != completion.kind() ||
        pass->data_epoch() != completion.data_epoch()) {
      pass = columns.add_passes();
      pass->set_kind(completion.kind());
      pass->set_data_epoch(completion.data_epoch());
      next_split = end = unix_ms = 0;
    }
    const auto [process, added] = processes.emplace(std::pair(completion.worker(), completion.incarnation()),
                                                    static_cast<uint32_t>(processes.size()));
    if (added) {
      WorkerProcess* out = columns.add_processes();
      out->set_name(completion.worker());
      out->set_incarnation(completion.incarnation());
    }
    pass->add_split_gap(static_cast<uint32_t>(completion.split() - next_split));
    pass->add_begin_gap(Gap(end, completion.begin()));
    pass->add_samples(completion.end() - completion.begin());
    pass->add_process(process->second);
    pass->add_unix_ms_gap(Gap(unix_ms, static_cast<uint64_t>(completion.unix_ms())));
    if (completion.kind() == LEASE_EVAL) *pass->add_eval() = completion.eval();
    next_split = uint64_t{completion.split()} + 1;
    end = completion.end();
    unix_ms = static_cast<uint64_t>(completion.unix_ms());
  }
  return columns;
}

absl::Status CheckControl(const ControlColumns& columns) {
  RECON_RETURN_IF_ERROR(CheckWorkers(columns));
  return ForEachCompletion(columns, [](const Completion&) {});
}

absl::StatusOr<ControlState> DecodeControl(const ControlColumns& columns, const ModelSpec& model) {
  RECON_RETURN_IF_ERROR(CheckWorkers(columns));
  ControlState state;
  if (columns.has_job()) {
    state.job = columns.job();
    *state.job->mutable_model() = model;
  }
  state.policy = columns.policy();
  for (const WorkerNumber& worker : columns.workers()) state.workers[worker.name()] = worker.number();
  RECON_RETURN_IF_ERROR(ForEachCompletion(columns, [&](Completion completion) {
    const ControlState::SplitKey key = ControlState::KeyOf(completion);
    state.completions.emplace_hint(state.completions.end(), key, std::move(completion));
  }));
  return state;
}

std::string EncodeControlRecord(const WorkerNumber& worker) {
  ControlRecord record;
  *record.mutable_worker() = worker;
  return record.SerializeAsString();
}

std::string EncodeControlRecord(const Completion& completion) {
  ControlRecord record;
  *record.mutable_completion() = completion;
  return record.SerializeAsString();
}

std::string EncodeControlRecord(const JobRecord& job) {
  ControlRecord record;
  *record.mutable_job() = job;
  return record.SerializeAsString();
}

std::string EncodeControlRecord(const PolicyRecord& policy) {
  ControlRecord record;
  *record.mutable_policy() = policy;
  return record.SerializeAsString();
}

absl::Status AddControlRecord(absl::string_view bytes, ControlState* state) {
  ControlRecord record;
  if (!record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("not a ControlRecord message");
  }
  if (record.has_job()) {
    if (!state->job) state->job = record.job();
    // What came to be known while it ran is in the later records.
    JobRecord known = *state->job;
    JobRecord said = record.job();
    for (JobRecord* job : {&known, &said}) {
      job->clear_data_fingerprint();
      job->clear_step_samples();
    }
    if (known.SerializeAsString() != said.SerializeAsString()) {
      return absl::DataLossError("the job is another than it was");
    }
    if (!record.job().data_fingerprint().empty()) {
      state->job->set_data_fingerprint(record.job().data_fingerprint());
    }
    if (record.job().step_samples() != 0) state->job->set_step_samples(record.job().step_samples());
    return absl::OkStatus();
  }
  if (record.has_worker()) {
    const WorkerNumber& worker = record.worker();
    RECON_RETURN_IF_ERROR(CheckWorker(worker));
    const auto [known, added] = state->workers.emplace(worker.name(), worker.number());
    if (added || known->second == worker.number()) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("worker ", worker.name(), " is given number ", worker.number(),
                                            ", it has ", known->second));
  }
  if (record.has_policy()) {
    state->policy = record.policy();
    return absl::OkStatus();
  }
  if (!record.has_completion()) return absl::DataLossError("a control record that says nothing");
  RECON_RETURN_IF_ERROR(CheckCompletion(record.completion()));
  const ControlState::SplitKey key = ControlState::KeyOf(record.completion());
  const auto [known, added] = state->completions.emplace(key, record.completion());
  // Snapshots do not have the sequence that it came after.
  Completion before = known->second;
  Completion said = record.completion();
  before.clear_after_sequence();
  said.clear_after_sequence();
  if (added || before.SerializeAsString() == said.SerializeAsString()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "split ", record.completion().split(), " of data epoch ",
      ShownDataEpoch(record.completion().data_epoch(), record.completion().kind() == LEASE_TRAIN),
      " is completed by ", record.completion().worker(), ", it was by ", known->second.worker()));
}

}  // namespace recon
