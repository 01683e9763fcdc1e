#include "server/control/control_journal.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/data_epoch.h"
#include "common/base/status_macros.h"
#include "google/protobuf/util/message_differencer.h"

namespace recon {
namespace {

WorkerNumber NumberOf(const std::string& name, uint32_t number) {
  WorkerNumber worker;
  worker.set_name(name);
  worker.set_number(number);
  return worker;
}

std::string Describe(const Completion& completion) {
  return absl::StrCat("split ", completion.split(), " of data epoch ",
                      ShownDataEpoch(completion.data_epoch(), completion.kind() == LEASE_TRAIN),
                      " is completed already");
}

}  // namespace

absl::Status ControlJournal::Start(const ControlState& recovered) {
  RECON_ASSIGN_OR_RETURN(const ControlState all, db_->Load());
  std::vector<std::string> records;
  if (all.job && !recovered.job) records.push_back(EncodeControlRecord(*all.job));
  for (const auto& [name, number] : all.workers) {
    if (recovered.workers.count(name) == 0) records.push_back(EncodeControlRecord(NumberOf(name, number)));
  }
  for (const auto& [split, completion] : all.completions) {
    if (recovered.completions.count(split) == 0) records.push_back(EncodeControlRecord(completion));
  }
  if (!google::protobuf::util::MessageDifferencer::Equals(all.policy, recovered.policy)) {
    records.push_back(EncodeControlRecord(all.policy));
  }
  return params_->RecordControl(records, [](uint64_t) {});
}

absl::Status ControlJournal::SavePolicy(const PolicyRecord& record) {
  RECON_RETURN_IF_ERROR(db_->SavePolicy(record));
  return params_->RecordControl({EncodeControlRecord(record)}, [](uint64_t) {});
}

absl::Status ControlJournal::SaveJob(const JobRecord& job) {
  RECON_RETURN_IF_ERROR(db_->SaveJob(job));
  return params_->RecordControl({EncodeControlRecord(job)}, [](uint64_t) {});
}

absl::StatusOr<WorkerId> ControlJournal::WorkerIdFor(const std::string& name) {
  RECON_ASSIGN_OR_RETURN(const std::optional<WorkerId> known, db_->FindWorker(name));
  if (known) return *known;
  RECON_ASSIGN_OR_RETURN(const WorkerId worker, db_->AddWorker(name));
  RECON_RETURN_IF_ERROR(
      params_->RecordControl({EncodeControlRecord(NumberOf(name, worker.value()))}, [](uint64_t) {}));
  return worker;
}

absl::Status ControlJournal::SaveCompletion(const Completion& completion) {
  const ControlState::SplitKey split = ControlState::KeyOf(completion);
  {
    MutexLock lock(&mu_);
    if (!recent_.emplace(split, std::nullopt).second) return absl::AlreadyExistsError(Describe(completion));
  }
  Completion placed = completion;
  placed.set_after_sequence(params_->position().push_sequence);
  if (const absl::Status saved = db_->SaveCompletion(placed); !saved.ok()) {
    MutexLock lock(&mu_);
    recent_.erase(split);
    return saved;
  }
  // The database first: what has a sequence before a cut is found there after it.
  return params_->RecordControl({EncodeControlRecord(placed)}, [&](uint64_t sequence) {
    MutexLock lock(&mu_);
    recent_[split] = sequence;
  });
}

absl::StatusOr<ControlState> ControlJournal::StateAt(uint64_t sequence) {
  RECON_ASSIGN_OR_RETURN(ControlState state, db_->Load());
  MutexLock lock(&mu_);
  for (auto it = recent_.begin(); it != recent_.end();) {
    const bool covered = it->second && *it->second <= sequence;
    if (!covered) state.completions.erase(it->first);
    it = covered ? recent_.erase(it) : std::next(it);
  }
  return state;
}

}  // namespace recon
