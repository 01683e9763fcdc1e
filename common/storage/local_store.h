#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/storage/file_system.h"
#include "common/storage/object_store.h"

namespace recon {

// Objects as files below one directory of a mounted file system.
//
// A file is written under a name ending in ".tmp", synced, renamed (or linked, for PutIfAbsent) and
// its directory synced, in that order. What a crash leaves are .tmp files; Open() removes them when
// `writer` is set, which only the owner of the directory may do.
class LocalStore : public ObjectStore {
 public:
  // NotFound if the directory is absent and `writer` is not set.
  // `files` must outlive the store.
  static absl::StatusOr<std::unique_ptr<LocalStore>> Open(const std::string& directory, bool writer,
                                                          FileSystem* files = FileSystem::Local());

  absl::StatusOr<std::unique_ptr<Writer>> Create(const std::string& name) override;
  absl::Status PutIfAbsent(const std::string& name, absl::string_view bytes) override;
  absl::StatusOr<uint64_t> Size(const std::string& name) override;
  absl::StatusOr<absl::Duration> Age(const std::string& name) override { return files_->Age(PathOf(name)); }
  absl::Status ReadInto(const std::string& name, uint64_t offset, uint64_t size, char* out) override;
  uint64_t read_bytes() const override { return limits::kDiskReadBytes; }
  absl::StatusOr<std::vector<std::string>> List(const std::string& prefix) override;
  absl::Status Delete(const std::string& name) override;
  // Open() does.
  absl::Status RemoveLeftovers(const std::vector<std::string>&) override { return absl::OkStatus(); }
  void CapPatience(absl::Duration most) override { files_->CapPatience(most); }
  std::string Describe() const override { return directory_; }

 private:
  LocalStore(std::string directory, FileSystem* files) : directory_(std::move(directory)), files_(files) {}
  std::string PathOf(const std::string& name) const;

  const std::string directory_;
  FileSystem* const files_;
};

// Whether snapshots can be published in a directory, tried out with files that are removed again. One line of
// the log if that goes without hard links; FailedPrecondition if not at all.
absl::Status CheckCanPublish(const std::string& directory, FileSystem* files = FileSystem::Local());

}  // namespace recon
