#include "server/durability/control_db.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "rocksdb/write_batch.h"
#include "server/durability/completion_key.h"

namespace recon {
namespace {

constexpr char kEpochKey[] = "epoch";
constexpr char kJobIdKey[] = "job_id";
constexpr char kJobKey[] = "job";
constexpr char kServersKey[] = "servers";
constexpr char kPlaceKey[] = "place";
constexpr char kPolicyKey[] = "policy";
constexpr char kSettingsKey[] = "settings";
constexpr char kLostKey[] = "lost";
constexpr char kLastWorkerKey[] = "last-worker";
constexpr char kWorkerPrefix[] = "worker/";

template <typename Number = uint64_t>
absl::StatusOr<Number> ParseNumber(const std::string& key, const std::string& value) {
  Number number = 0;
  if (!absl::SimpleAtoi(value, &number)) {
    return absl::DataLossError(
        absl::StrCat("control database: key ", key, " holds '", value, "', not a number"));
  }
  return number;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlDb>> ControlDb::Open(const std::string& directory) {
  RECON_ASSIGN_OR_RETURN(std::unique_ptr<ControlRows> rows, ControlRows::Open(directory));
  std::unique_ptr<ControlDb> opened(new ControlDb(std::move(rows)));
  RECON_ASSIGN_OR_RETURN(const auto epoch, opened->rows_->Get(kEpochKey));
  opened->created_ = !epoch;
  RECON_RETURN_IF_ERROR(opened->Load().status());
  return opened;
}

ControlDb::ControlDb(std::unique_ptr<ControlRows> rows) : rows_(std::move(rows)), rollbacks_(rows_.get()) {}

absl::StatusOr<uint64_t> ControlDb::ClusterEpoch() const {
  RECON_ASSIGN_OR_RETURN(const auto value, rows_->Get(kEpochKey));
  if (!value) return 0;
  return ParseNumber(kEpochKey, *value);
}

absl::StatusOr<uint64_t> ControlDb::NextClusterEpoch(uint64_t last) {
  RECON_ASSIGN_OR_RETURN(uint64_t epoch, ClusterEpoch());
  epoch = std::max(epoch, last) + 1;
  RECON_RETURN_IF_ERROR(rows_->Put(kEpochKey, absl::StrCat(epoch)));
  return epoch;
}

absl::StatusOr<uint64_t> ControlDb::JobId(uint64_t id) {
  RECON_ASSIGN_OR_RETURN(const auto value, rows_->Get(kJobIdKey));
  if (value) return ParseNumber(kJobIdKey, *value);
  if (id == 0) id = RandomNonZero();
  RECON_RETURN_IF_ERROR(rows_->Put(kJobIdKey, absl::StrCat(id)));
  return id;
}

absl::StatusOr<std::optional<JobRecord>> ControlDb::LoadJob() const {
  RECON_ASSIGN_OR_RETURN(const auto value, rows_->Get(kJobKey));
  if (!value) return std::nullopt;
  RECON_ASSIGN_OR_RETURN(JobRecord job, ControlRows::ParseMessage<JobRecord>(kJobKey, *value));
  return job;
}

absl::Status ControlDb::SaveJob(const JobRecord& job) { return rows_->Put(kJobKey, job.SerializeAsString()); }

absl::StatusOr<std::optional<WorkerId>> ControlDb::FindWorker(const std::string& name) const {
  const std::string key = kWorkerPrefix + name;
  RECON_ASSIGN_OR_RETURN(const auto known, rows_->Get(key));
  if (!known) return std::nullopt;
  RECON_ASSIGN_OR_RETURN(const auto id, ParseNumber<uint32_t>(key, *known));
  return WorkerId(id);
}

absl::StatusOr<WorkerId> ControlDb::AddWorker(const std::string& name) {
  RECON_ASSIGN_OR_RETURN(const auto last, rows_->Get(kLastWorkerKey));
  uint32_t id = 0;
  if (last) {
    RECON_ASSIGN_OR_RETURN(id, ParseNumber<uint32_t>(kLastWorkerKey, *last));
  }
  ++id;
  // The counter first: a crash in between skips a number and never gives one out twice.
  RECON_RETURN_IF_ERROR(rows_->Put(kLastWorkerKey, absl::StrCat(id)));
  RECON_RETURN_IF_ERROR(rows_->Put(kWorkerPrefix + name, absl::StrCat(id)));
  return WorkerId(id);
}

absl::Status ControlDb::SaveCompletion(const Completion& completion) {
  const std::string key = CompletionKey(completion);
  RECON_ASSIGN_OR_RETURN(const auto before, rows_->Get(key));
  if (before)
    return absl::AlreadyExistsError(absl::StrCat("control database: ", key, " is completed already"));
  return rows_->Put(key, completion.SerializeAsString());
}

absl::StatusOr<std::vector<Completion>> ControlDb::LoadCompletions() const {
  std::vector<Completion> completions;
  const auto add = [&](const std::string& key, const std::string& value) -> absl::Status {
    RECON_ASSIGN_OR_RETURN(Completion completion, ControlRows::ParseMessage<Completion>(key, value));
    completions.push_back(std::move(completion));
    return absl::OkStatus();
  };
  RECON_RETURN_IF_ERROR(rows_->ForEach(kCompletionPrefix, "list completions", add));
  return completions;
}

absl::StatusOr<ServerTable> ControlDb::LoadServers() const {
  return rows_->GetMessage<ServerTable>(kServersKey);
}

absl::Status ControlDb::SaveServers(const ServerTable& table) {
  return rows_->Put(kServersKey, table.SerializeAsString());
}

absl::StatusOr<ServerPlace> ControlDb::LoadPlace() const { return rows_->GetMessage<ServerPlace>(kPlaceKey); }

absl::Status ControlDb::SavePlace(const ServerPlace& place) {
  return rows_->Put(kPlaceKey, place.SerializeAsString());
}

absl::StatusOr<PolicyRecord> ControlDb::LoadPolicy() const {
  return rows_->GetMessage<PolicyRecord>(kPolicyKey);
}

absl::Status ControlDb::SavePolicy(const PolicyRecord& record) {
  return rows_->Put(kPolicyKey, record.SerializeAsString());
}

absl::StatusOr<uint64_t> ControlDb::LoadLost() const {
  RECON_ASSIGN_OR_RETURN(const auto value, rows_->Get(kLostKey));
  if (!value) return uint64_t{0};
  return ParseNumber<uint64_t>(kLostKey, *value);
}

absl::Status ControlDb::SaveLost(uint64_t generation) {
  return rows_->Put(kLostKey, absl::StrCat(generation));
}

absl::StatusOr<std::string> ControlDb::LoadSettings() const {
  RECON_ASSIGN_OR_RETURN(const auto value, rows_->Get(kSettingsKey));
  return value.value_or("");
}

absl::Status ControlDb::SaveSettings(const std::string& text) { return rows_->Put(kSettingsKey, text); }

absl::Status ControlDb::DropCompletions(const std::vector<Completion>& completions) {
  rocksdb::WriteBatch batch;
  for (const Completion& completion : completions) batch.Delete(CompletionKey(completion));
  return rows_->Write(&batch, "drop completions");
}

absl::StatusOr<ControlState> ControlDb::Load() const {
  ControlState state;
  RECON_ASSIGN_OR_RETURN(state.job, LoadJob());
  RECON_ASSIGN_OR_RETURN(state.policy, LoadPolicy());
  const auto add = [&](const std::string& key, const std::string& value) -> absl::Status {
    RECON_ASSIGN_OR_RETURN(const auto id, ParseNumber<uint32_t>(key, value));
    state.workers[std::string(absl::StripPrefix(key, kWorkerPrefix))] = id;
    return absl::OkStatus();
  };
  RECON_RETURN_IF_ERROR(rows_->ForEach(kWorkerPrefix, "list workers", add));
  RECON_ASSIGN_OR_RETURN(std::vector<Completion> completions, LoadCompletions());
  for (Completion& completion : completions) {
    const ControlState::SplitKey key = ControlState::KeyOf(completion);
    state.completions.emplace(key, std::move(completion));
  }
  return state;
}

absl::Status ControlDb::Merge(const ControlState& state) {
  RECON_ASSIGN_OR_RETURN(const ControlState known, Load());
  rocksdb::WriteBatch batch;
  if (state.job && !known.job) batch.Put(kJobKey, state.job->SerializeAsString());
  RECON_ASSIGN_OR_RETURN(const auto last, rows_->Get(kLastWorkerKey));
  uint32_t last_worker = 0;
  if (last) {
    RECON_ASSIGN_OR_RETURN(last_worker, ParseNumber<uint32_t>(kLastWorkerKey, *last));
  }
  for (const auto& [name, number] : state.workers) {
    const auto found = known.workers.find(name);
    if (found != known.workers.end() && found->second != number) {
      return absl::DataLossError(absl::StrCat("control database: worker ", name, " is number ", found->second,
                                              ", in the snapshot and the push log ", number));
    }
    if (found == known.workers.end()) batch.Put(kWorkerPrefix + name, absl::StrCat(number));
    last_worker = std::max(last_worker, number);
  }
  for (const auto& [split, completion] : state.completions) {
    if (known.completions.count(split) == 0)
      batch.Put(CompletionKey(completion), completion.SerializeAsString());
  }
  if (batch.Count() == 0) return absl::OkStatus();
  batch.Put(kLastWorkerKey, absl::StrCat(last_worker));
  return rows_->Write(&batch, "merge");
}

}  // namespace recon
