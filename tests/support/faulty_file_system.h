#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "common/storage/file_system.h"

namespace recon {

// A file system in memory that knows what a disk would still have after a power failure, and can fail on
// demand. Thread-safe.
class FaultyFileSystem : public FileSystem {
 public:
  enum class Fault { kIoError, kFull, kShortWriteThenFull };

  // The call number `call` from now (from 1) fails, of those that can; with `for_good`, all that follow, too.
  void FailCall(int call, Fault fault, bool for_good);
  void FailNothing();
  // Calls that could have failed so far.
  int calls() const;

  // Its clock, which Age() goes by, stands but for this.
  void Advance(absl::Duration duration);
  // What FreeBytes() says; as much as there can be by default.
  void SetFreeBytes(uint64_t bytes);

  // What a power failure leaves: of what was not synced, any `sector`-sized part may be there or not, and any
  // name. Deterministic in `seed`.
  std::unique_ptr<FaultyFileSystem> AfterPowerFailure(uint64_t seed, size_t sector) const;
  // A copy: what the death of a process leaves.
  std::unique_ptr<FaultyFileSystem> Copy() const;

  // For tests that damage files.
  std::string Content(const std::string& path) const;
  void SetContent(const std::string& path, const std::string& content);

  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override;
  absl::StatusOr<uint64_t> Size(const std::string& path) override;
  absl::StatusOr<absl::Duration> Age(const std::string& path) override;
  absl::Status ReadInto(const std::string& path, uint64_t offset, uint64_t size, char* out) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Link(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status CreateDirectories(const std::string& path) override;
  absl::StatusOr<bool> IsDirectory(const std::string& path) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string& directory) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override;

 private:
  struct Inode {
    std::string data;
    std::string durable;
    absl::Duration written = absl::ZeroDuration();  // By the clock.
  };
  class OpenFile;
  using Names = std::map<std::string, std::shared_ptr<Inode>>;

  // What the next call does.
  std::optional<Fault> NextFault();
  absl::Status FailIfDue(const std::string& what);

  mutable std::mutex mu_;
  absl::Duration clock_ = absl::ZeroDuration();
  uint64_t free_bytes_ = UINT64_MAX;
  Names names_;
  Names durable_names_;
  std::set<std::string> directories_;
  int calls_ = 0;
  int fail_at_ = 0;  // Number of the call; 0 = none.
  bool for_good_ = false;
  Fault fault_ = Fault::kIoError;
};

}  // namespace recon
