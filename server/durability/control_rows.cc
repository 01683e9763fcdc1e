#include "server/durability/control_rows.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/storage/patience.h"
#include "rocksdb/db.h"
#include "rocksdb/env.h"
#include "rocksdb/write_batch.h"
#include "server/durability/control_db_files.h"

namespace recon {

absl::StatusOr<std::unique_ptr<ControlRows>> ControlRows::Open(const std::string& directory) {
  RECON_RETURN_IF_ERROR(CheckControlDbFiles(directory));
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
  return std::unique_ptr<ControlRows>(new ControlRows(std::move(env), std::unique_ptr<rocksdb::DB>(db)));
}

ControlRows::ControlRows(std::unique_ptr<rocksdb::Env> env, std::unique_ptr<rocksdb::DB> db)
    : env_(std::move(env)), db_(std::move(db)) {}
ControlRows::~ControlRows() = default;

absl::StatusOr<std::optional<std::string>> ControlRows::Get(const std::string& key) const {
  std::string value;
  const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), key, &value);
  if (status.IsNotFound()) return std::nullopt;
  RECON_RETURN_IF_ERROR(FromRocks(status, absl::StrCat("read ", key)));
  return value;
}

absl::Status ControlRows::ForEach(
    const std::string& prefix, const std::string& what,
    const std::function<absl::Status(const std::string& key, const std::string& value)>& row) const {
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  for (it->Seek(prefix); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    RECON_RETURN_IF_ERROR(row(it->key().ToString(), it->value().ToString()));
  }
  return FromRocks(it->status(), what);
}

absl::Status ControlRows::Put(const std::string& key, const std::string& value) {
  rocksdb::WriteBatch batch;
  batch.Put(key, value);
  return Write(&batch, absl::StrCat("write ", key));
}

absl::Status ControlRows::Write(rocksdb::WriteBatch* batch, const std::string& what) {
  rocksdb::WriteOptions options;
  options.sync = true;
  return FromRocks(db_->Write(options, batch), absl::StrCat(what, " in ", db_->GetName()));
}

}  // namespace recon
