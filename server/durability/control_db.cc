#include "server/durability/control_db.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/storage/patience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/write_batch.h"
#include "server/durability/control_db_files.h"

namespace recon {
namespace {

constexpr char kEpochKey[] = "epoch";
constexpr char kJobIdKey[] = "job_id";
constexpr char kJobKey[] = "job";
constexpr char kServersKey[] = "servers";
constexpr char kPlaceKey[] = "place";
constexpr char kPolicyKey[] = "policy";
constexpr char kSettingsKey[] = "settings";
constexpr char kLastRollbackKey[] = "rollback";
constexpr char kNextRollbackKey[] = "rollback_next";
constexpr char kLastWorkerKey[] = "last-worker";
constexpr char kWorkerPrefix[] = "worker/";
constexpr char kDonePrefix[] = "done/";

std::string DoneKey(const Completion& completion) {
  return absl::StrFormat("%s%d/%08x/%08x", kDonePrefix, completion.kind(), completion.data_epoch(),
                         completion.split());
}

template <typename Number = uint64_t>
absl::StatusOr<Number> ParseNumber(const std::string& key, const std::string& value) {
  Number number = 0;
  if (!absl::SimpleAtoi(value, &number)) {
    return absl::DataLossError(
        absl::StrCat("control database: key ", key, " holds '", value, "', not a number"));
  }
  return number;
}

template <typename Message>
absl::StatusOr<Message> ParseMessage(const std::string& key, const std::string& value) {
  Message message;
  if (!message.ParseFromString(value)) {
    return absl::DataLossError(
        absl::StrCat("control database: key ", key, " does not hold a ", message.GetTypeName()));
  }
  return message;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlDb>> ControlDb::Open(const std::string& directory) {
  std::unique_ptr<rocksdb::Env> env = MakeControlDbEnv();
  rocksdb::Options options;
  options.env = env.get();
  options.create_if_missing = true;
  options.keep_log_file_num = 2;
  options.max_open_files = 64;
  options.write_buffer_size = 4 << 20;
  options.info_log_level = rocksdb::WARN_LEVEL;
  // A record that a crash cut off is none; damage before it must be noticed.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  rocksdb::DB* db = nullptr;
  RECON_ASSIGN_OR_RETURN(const absl::Duration patience, PatienceFromEnvironment());
  RECON_RETURN_IF_ERROR(RetryUnavailable(Patience(patience), [&] {
    return FromRocks(rocksdb::DB::Open(options, directory, &db), absl::StrCat("open ", directory));
  }));
  std::unique_ptr<ControlDb> opened(new ControlDb(std::move(env), std::unique_ptr<rocksdb::DB>(db)));
  RECON_ASSIGN_OR_RETURN(const auto epoch, opened->Get(kEpochKey));
  opened->created_ = !epoch;
  RECON_RETURN_IF_ERROR(opened->Load().status());
  return opened;
}

ControlDb::ControlDb(std::unique_ptr<rocksdb::Env> env, std::unique_ptr<rocksdb::DB> db)
    : env_(std::move(env)), db_(std::move(db)) {}
ControlDb::~ControlDb() = default;

absl::Status ControlDb::Put(const std::string& key, const std::string& value) {
  rocksdb::WriteBatch batch;
  batch.Put(key, value);
  return Write(&batch, absl::StrCat("write ", key));
}

absl::Status ControlDb::Write(rocksdb::WriteBatch* batch, const std::string& what) {
  rocksdb::WriteOptions options;
  options.sync = true;
  return FromRocks(db_->Write(options, batch), absl::StrCat(what, " in ", db_->GetName()));
}

absl::StatusOr<std::optional<std::string>> ControlDb::Get(const std::string& key) const {
  std::string value;
  const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), key, &value);
  if (status.IsNotFound()) return std::nullopt;
  RECON_RETURN_IF_ERROR(FromRocks(status, absl::StrCat("read ", key)));
  return value;
}

absl::StatusOr<uint64_t> ControlDb::ClusterEpoch() const {
  RECON_ASSIGN_OR_RETURN(const auto value, Get(kEpochKey));
  if (!value) return 0;
  return ParseNumber(kEpochKey, *value);
}

absl::StatusOr<uint64_t> ControlDb::NextClusterEpoch(uint64_t last) {
  RECON_ASSIGN_OR_RETURN(uint64_t epoch, ClusterEpoch());
  epoch = std::max(epoch, last) + 1;
  RECON_RETURN_IF_ERROR(Put(kEpochKey, absl::StrCat(epoch)));
  return epoch;
}

absl::StatusOr<uint64_t> ControlDb::JobId(uint64_t id) {
  RECON_ASSIGN_OR_RETURN(const auto value, Get(kJobIdKey));
  if (value) return ParseNumber(kJobIdKey, *value);
  if (id == 0) id = RandomNonZero();
  RECON_RETURN_IF_ERROR(Put(kJobIdKey, absl::StrCat(id)));
  return id;
}

absl::StatusOr<std::optional<JobRecord>> ControlDb::LoadJob() const {
  RECON_ASSIGN_OR_RETURN(const auto value, Get(kJobKey));
  if (!value) return std::nullopt;
  RECON_ASSIGN_OR_RETURN(JobRecord job, ParseMessage<JobRecord>(kJobKey, *value));
  return job;
}

absl::Status ControlDb::SaveJob(const JobRecord& job) { return Put(kJobKey, job.SerializeAsString()); }

absl::StatusOr<std::optional<WorkerId>> ControlDb::FindWorker(const std::string& name) const {
  const std::string key = kWorkerPrefix + name;
  RECON_ASSIGN_OR_RETURN(const auto known, Get(key));
  if (!known) return std::nullopt;
  RECON_ASSIGN_OR_RETURN(const auto id, ParseNumber<uint32_t>(key, *known));
  return WorkerId(id);
}

absl::StatusOr<WorkerId> ControlDb::AddWorker(const std::string& name) {
  RECON_ASSIGN_OR_RETURN(const auto last, Get(kLastWorkerKey));
  uint32_t id = 0;
  if (last) {
    RECON_ASSIGN_OR_RETURN(id, ParseNumber<uint32_t>(kLastWorkerKey, *last));
  }
  ++id;
  // The counter first: a crash in between skips a number and never gives one out twice.
  RECON_RETURN_IF_ERROR(Put(kLastWorkerKey, absl::StrCat(id)));
  RECON_RETURN_IF_ERROR(Put(kWorkerPrefix + name, absl::StrCat(id)));
  return WorkerId(id);
}

absl::Status ControlDb::SaveCompletion(const Completion& completion) {
  const std::string key = DoneKey(completion);
  RECON_ASSIGN_OR_RETURN(const auto before, Get(key));
  if (before)
    return absl::AlreadyExistsError(absl::StrCat("control database: ", key, " is completed already"));
  return Put(key, completion.SerializeAsString());
}

absl::StatusOr<std::vector<Completion>> ControlDb::LoadCompletions() const {
  std::vector<Completion> completions;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  for (it->Seek(kDonePrefix); it->Valid() && it->key().starts_with(kDonePrefix); it->Next()) {
    RECON_ASSIGN_OR_RETURN(Completion completion,
                           ParseMessage<Completion>(it->key().ToString(), it->value().ToString()));
    completions.push_back(std::move(completion));
  }
  RECON_RETURN_IF_ERROR(FromRocks(it->status(), "list completions"));
  return completions;
}

absl::StatusOr<ServerTable> ControlDb::LoadServers() const {
  RECON_ASSIGN_OR_RETURN(const auto value, Get(kServersKey));
  if (!value) return ServerTable();
  return ParseMessage<ServerTable>(kServersKey, *value);
}

absl::Status ControlDb::SaveServers(const ServerTable& table) {
  return Put(kServersKey, table.SerializeAsString());
}

absl::StatusOr<ServerPlace> ControlDb::LoadPlace() const {
  RECON_ASSIGN_OR_RETURN(const auto value, Get(kPlaceKey));
  if (!value) return ServerPlace();
  return ParseMessage<ServerPlace>(kPlaceKey, *value);
}

absl::Status ControlDb::SavePlace(const ServerPlace& place) {
  return Put(kPlaceKey, place.SerializeAsString());
}

absl::StatusOr<PolicyRecord> ControlDb::LoadPolicy() const {
  RECON_ASSIGN_OR_RETURN(const auto value, Get(kPolicyKey));
  if (!value) return PolicyRecord();
  return ParseMessage<PolicyRecord>(kPolicyKey, *value);
}

absl::Status ControlDb::SavePolicy(const PolicyRecord& record) {
  return Put(kPolicyKey, record.SerializeAsString());
}

absl::StatusOr<std::string> ControlDb::LoadSettings() const {
  RECON_ASSIGN_OR_RETURN(const auto value, Get(kSettingsKey));
  return value.value_or("");
}

absl::Status ControlDb::SaveSettings(const std::string& text) { return Put(kSettingsKey, text); }

absl::StatusOr<RollbackRecord> ControlDb::LoadRollback(const char* key) const {
  RECON_ASSIGN_OR_RETURN(const auto value, Get(key));
  if (!value) return RollbackRecord();
  return ParseMessage<RollbackRecord>(key, *value);
}

absl::StatusOr<RollbackRecord> ControlDb::LoadNextRollback() const { return LoadRollback(kNextRollbackKey); }
absl::StatusOr<RollbackRecord> ControlDb::LoadLastRollback() const { return LoadRollback(kLastRollbackKey); }

absl::Status ControlDb::SaveNextRollback(const RollbackRecord& record) {
  return Put(kNextRollbackKey, record.SerializeAsString());
}

absl::Status ControlDb::DropNextRollback() {
  rocksdb::WriteBatch batch;
  batch.Delete(kNextRollbackKey);
  return Write(&batch, "drop rollback");
}

absl::Status ControlDb::DropCompletions(const std::vector<Completion>& completions) {
  rocksdb::WriteBatch batch;
  for (const Completion& completion : completions) batch.Delete(DoneKey(completion));
  return Write(&batch, "drop completions");
}

absl::Status ControlDb::FinishRollback(const RollbackRecord& record, const ControlState& state) {
  RECON_ASSIGN_OR_RETURN(const std::vector<Completion> completions, LoadCompletions());
  rocksdb::WriteBatch batch;
  for (const Completion& completion : completions) {
    if (state.completions.count(ControlState::KeyOf(completion)) == 0) batch.Delete(DoneKey(completion));
  }
  // One that was undone and done again since is what it was.
  for (const auto& [split, completion] : state.completions) {
    batch.Put(DoneKey(completion), completion.SerializeAsString());
  }
  batch.Put(kLastRollbackKey, record.SerializeAsString());
  batch.Delete(kNextRollbackKey);
  return Write(&batch, "finish rollback");
}

absl::StatusOr<ControlState> ControlDb::Load() const {
  ControlState state;
  RECON_ASSIGN_OR_RETURN(state.job, LoadJob());
  RECON_ASSIGN_OR_RETURN(state.policy, LoadPolicy());
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  for (it->Seek(kWorkerPrefix); it->Valid() && it->key().starts_with(kWorkerPrefix); it->Next()) {
    const std::string key = it->key().ToString();
    RECON_ASSIGN_OR_RETURN(const auto id, ParseNumber<uint32_t>(key, it->value().ToString()));
    state.workers[std::string(absl::StripPrefix(key, kWorkerPrefix))] = id;
  }
  RECON_RETURN_IF_ERROR(FromRocks(it->status(), "list workers"));
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
  RECON_ASSIGN_OR_RETURN(const auto last, Get(kLastWorkerKey));
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
    if (known.completions.count(split) == 0) batch.Put(DoneKey(completion), completion.SerializeAsString());
  }
  if (batch.Count() == 0) return absl::OkStatus();
  batch.Put(kLastWorkerKey, absl::StrCat(last_worker));
  return Write(&batch, "merge");
}

}  // namespace recon
