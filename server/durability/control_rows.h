#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace rocksdb {
class DB;
class Env;
class WriteBatch;
}  // namespace rocksdb

namespace recon {

// Keys and values in RocksDB: what a control database (control_db.h) is made of. Every write is synced before
// it returns.
//
// Threads: thread-safe, as RocksDB is. Blocks on the disk.
// Errors: DataLoss for what is damaged. A write that fails ends the process (control_db_files.h).
class ControlRows {
 public:
  static absl::StatusOr<std::unique_ptr<ControlRows>> Open(const std::string& directory);
  ~ControlRows();

  absl::StatusOr<std::optional<std::string>> Get(const std::string& key) const;
  // All rows whose keys begin so, in the order of their keys. Ends with the first error of `row`. `what` is
  // said of an error: "list workers".
  absl::Status ForEach(
      const std::string& prefix, const std::string& what,
      const std::function<absl::Status(const std::string& key, const std::string& value)>& row) const;
  absl::Status Put(const std::string& key, const std::string& value);
  // All of the batch or nothing. `what` as above: "merge".
  absl::Status Write(rocksdb::WriteBatch* batch, const std::string& what);

  // A message that a row has; a default one if there is no such row. DataLoss if it has something else.
  template <typename Message>
  absl::StatusOr<Message> GetMessage(const std::string& key) const {
    const absl::StatusOr<std::optional<std::string>> value = Get(key);
    if (!value.ok()) return value.status();
    return *value ? ParseMessage<Message>(key, **value) : Message();
  }
  template <typename Message>
  static absl::StatusOr<Message> ParseMessage(const std::string& key, const std::string& value) {
    Message message;
    if (message.ParseFromString(value)) return message;
    return absl::DataLossError(
        absl::StrCat("control database: key ", key, " does not hold a ", message.GetTypeName()));
  }

 private:
  ControlRows(std::unique_ptr<rocksdb::Env> env, std::unique_ptr<rocksdb::DB> db);

  std::unique_ptr<rocksdb::Env> env_;  // Outlives the database.
  std::unique_ptr<rocksdb::DB> db_;
};

}  // namespace recon
