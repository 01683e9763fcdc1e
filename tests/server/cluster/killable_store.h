#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "common/storage/local_store.h"

namespace recon {

// One process' way to a store that it shares with others: once the process is dead, nothing of it reaches the
// store any more.
class KillableStore final : public ObjectStore {
 public:
  explicit KillableStore(FileSystem* files)
      : store_(*LocalStore::Open("/snapshots", /*writer=*/false, files)) {}

  void Kill() { dead_ = true; }

  absl::StatusOr<std::unique_ptr<Writer>> Create(const std::string& name) override {
    if (dead_) return Dead();
    return store_->Create(name);
  }
  absl::Status PutIfAbsent(const std::string& name, absl::string_view bytes) override {
    return dead_ ? Dead() : store_->PutIfAbsent(name, bytes);
  }
  absl::StatusOr<uint64_t> Size(const std::string& name) override {
    if (dead_) return Dead();
    return store_->Size(name);
  }
  absl::StatusOr<absl::Duration> Age(const std::string& name) override {
    if (dead_) return Dead();
    return store_->Age(name);
  }
  absl::Status ReadInto(const std::string& name, uint64_t offset, uint64_t size, char* out) override {
    return dead_ ? Dead() : store_->ReadInto(name, offset, size, out);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& prefix) override {
    if (dead_) return Dead();
    return store_->List(prefix);
  }
  absl::Status Delete(const std::string& name) override { return dead_ ? Dead() : store_->Delete(name); }
  absl::Status RemoveLeftovers(const std::vector<std::string>&) override { return absl::OkStatus(); }
  std::string Describe() const override { return store_->Describe(); }

 private:
  static absl::Status Dead() { return absl::UnavailableError("the process is dead"); }

  const std::unique_ptr<LocalStore> store_;
  std::atomic<bool> dead_{false};
};

}  // namespace recon
