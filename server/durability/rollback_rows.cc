#include "server/durability/rollback_rows.h"

#include <string>

#include "common/base/status_macros.h"
#include "rocksdb/write_batch.h"
#include "server/durability/completion_key.h"

namespace recon {
namespace {

constexpr char kLastKey[] = "rollback";
constexpr char kNextKey[] = "rollback_next";

}  // namespace

absl::StatusOr<RollbackRecord> RollbackRows::LoadNext() const {
  return rows_->GetMessage<RollbackRecord>(kNextKey);
}
absl::StatusOr<RollbackRecord> RollbackRows::LoadLast() const {
  return rows_->GetMessage<RollbackRecord>(kLastKey);
}

absl::Status RollbackRows::SaveNext(const RollbackRecord& record) {
  return rows_->Put(kNextKey, record.SerializeAsString());
}

absl::Status RollbackRows::SaveLast(const RollbackRecord& record) {
  return rows_->Put(kLastKey, record.SerializeAsString());
}

absl::Status RollbackRows::DropNext() {
  rocksdb::WriteBatch batch;
  batch.Delete(kNextKey);
  return rows_->Write(&batch, "drop rollback");
}

absl::Status RollbackRows::Finish(const RollbackRecord& record, const ControlState& state) {
  rocksdb::WriteBatch batch;
  const auto drop_undone = [&](const std::string& key, const std::string& value) -> absl::Status {
    RECON_ASSIGN_OR_RETURN(const Completion completion, ControlRows::ParseMessage<Completion>(key, value));
    if (state.completions.count(ControlState::KeyOf(completion)) == 0) batch.Delete(key);
    return absl::OkStatus();
  };
  RECON_RETURN_IF_ERROR(rows_->ForEach(kCompletionPrefix, "list completions", drop_undone));
  // One that was undone and done again since is what it was.
  for (const auto& [split, completion] : state.completions) {
    batch.Put(CompletionKey(completion), completion.SerializeAsString());
  }
  batch.Put(kLastKey, record.SerializeAsString());
  batch.Delete(kNextKey);
  return rows_->Write(&batch, "finish rollback");
}

}  // namespace recon
