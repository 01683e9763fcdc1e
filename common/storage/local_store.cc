#include "common/storage/local_store.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/fault_point.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

namespace fs = std::filesystem;
constexpr char kTemporary[] = ".tmp";
// The disk works while what comes next is made.
constexpr uint64_t kWriteBehindBytes = uint64_t{8} << 20;

std::string ParentOf(const std::string& path) { return fs::path(path).parent_path(); }

class LocalWriter : public ObjectStore::Writer {
 public:
  LocalWriter(FileSystem* files, std::string path) : files_(files), path_(std::move(path)) {}
  ~LocalWriter() override {
    file_.reset();
    if (!closed_) (void)files_->Remove(temporary());
  }

  absl::Status Open() {
    RECON_RETURN_IF_ERROR(files_->CreateDirectories(ParentOf(path_)));
    RECON_ASSIGN_OR_RETURN(file_, files_->Create(temporary()));
    return absl::OkStatus();
  }

  absl::Status Append(absl::string_view bytes) override {
    RECON_CHECK(file_ != nullptr && !closed_);
    RECON_FAULT_POINT("store.append");
    RECON_RETURN_IF_ERROR(file_->Append({bytes}));
    unwritten_ += bytes.size();
    if (unwritten_ < kWriteBehindBytes) return absl::OkStatus();
    unwritten_ = 0;
    file_->StartWriting();
    return absl::OkStatus();
  }

  absl::Status Close() override {
    RECON_CHECK(!closed_, "a file is closed twice");
    RECON_FAULT_POINT("store.before_sync");
    RECON_RETURN_IF_ERROR(file_->Sync());
    RECON_FAULT_POINT("store.before_rename");
    RECON_RETURN_IF_ERROR(files_->Rename(temporary(), path_));
    closed_ = true;
    RECON_FAULT_POINT("store.before_directory_sync");
    return files_->SyncDirectory(ParentOf(path_));
  }

 private:
  std::string temporary() const { return path_ + kTemporary; }

  FileSystem* const files_;
  const std::string path_;
  std::unique_ptr<FileSystem::File> file_;
  uint64_t unwritten_ = 0;
  bool closed_ = false;
};

}  // namespace

absl::StatusOr<std::string> ObjectStore::Read(const std::string& name, uint64_t offset, uint64_t size) {
  // Before it allocates: sizes may come from a damaged object.
  RECON_ASSIGN_OR_RETURN(const uint64_t have, Size(name));
  if (offset > have || size > have - offset) {
    return absl::DataLossError(absl::StrCat(Describe(), "/", name, " has ", have, " bytes, ", size,
                                            " were expected from byte ", offset));
  }
  std::string bytes(size, '\0');
  RECON_RETURN_IF_ERROR(ReadInto(name, offset, size, bytes.data()));
  return bytes;
}

absl::StatusOr<std::unique_ptr<LocalStore>> LocalStore::Open(const std::string& directory, bool writer,
                                                             FileSystem* files) {
  if (writer) RECON_RETURN_IF_ERROR(files->CreateDirectories(directory));
  RECON_ASSIGN_OR_RETURN(const bool is_there, files->IsDirectory(directory));
  if (!is_there) {
    return absl::NotFoundError(absl::StrCat(directory, " is not a directory"));
  }
  std::unique_ptr<LocalStore> store(new LocalStore(directory, files));
  if (writer) {
    RECON_ASSIGN_OR_RETURN(const std::vector<std::string> names, files->List(directory));
    for (const std::string& name : names) {
      if (absl::EndsWith(name, kTemporary)) RECON_RETURN_IF_ERROR(store->Delete(name));
    }
  }
  return store;
}

absl::Status CheckCanPublish(const std::string& directory, FileSystem* files) {
  const std::string from = absl::StrCat(directory, "/probe.", absl::Hex(RandomNonZero()), kTemporary);
  const std::string to = absl::StrCat(directory, "/probe.", absl::Hex(RandomNonZero()), kTemporary);
  RECON_RETURN_IF_ERROR(files->Create(from).status());
  const absl::Status linked = files->Link(from, to);
  if (linked.ok() && absl::IsNotFound(files->Size(from).status())) {
    LogInfo("{} has no hard links: snapshots are published by renaming", directory);
  }
  (void)files->Remove(from);
  (void)files->Remove(to);
  return linked;
}

std::string LocalStore::PathOf(const std::string& name) const { return absl::StrCat(directory_, "/", name); }

absl::StatusOr<std::unique_ptr<ObjectStore::Writer>> LocalStore::Create(const std::string& name) {
  auto writer = std::make_unique<LocalWriter>(files_, PathOf(name));
  RECON_RETURN_IF_ERROR(writer->Open());
  return std::unique_ptr<ObjectStore::Writer>(std::move(writer));
}

absl::Status LocalStore::PutIfAbsent(const std::string& name, absl::string_view bytes) {
  const std::string path = PathOf(name);
  // Others may be putting it, too.
  const std::string temporary = absl::StrCat(path, ".", absl::Hex(RandomNonZero()), kTemporary);
  RECON_RETURN_IF_ERROR(files_->CreateDirectories(ParentOf(path)));
  {
    RECON_ASSIGN_OR_RETURN(const std::unique_ptr<FileSystem::File> file, files_->Create(temporary));
    absl::Status written = file->Append({bytes});
    if (written.ok()) written = file->Sync();
    if (!written.ok()) {
      (void)files_->Remove(temporary);
      return written;
    }
  }
  RECON_FAULT_POINT("publish.before_link");
  // Link() fails where Rename() would replace.
  const absl::Status linked = files_->Link(temporary, path);
  RECON_FAULT_POINT("publish.after_link");
  (void)files_->Remove(temporary);
  RECON_RETURN_IF_ERROR(linked);
  return files_->SyncDirectory(ParentOf(path));
}

absl::StatusOr<uint64_t> LocalStore::Size(const std::string& name) { return files_->Size(PathOf(name)); }

absl::Status LocalStore::ReadInto(const std::string& name, uint64_t offset, uint64_t size, char* out) {
  return files_->ReadInto(PathOf(name), offset, size, out);
}

absl::StatusOr<std::vector<std::string>> LocalStore::List(const std::string& prefix) {
  RECON_ASSIGN_OR_RETURN(std::vector<std::string> names, files_->List(directory_));
  names.erase(std::remove_if(names.begin(), names.end(),
                             [&](const std::string& name) {
                               return absl::EndsWith(name, kTemporary) || !absl::StartsWith(name, prefix);
                             }),
              names.end());
  return names;
}

absl::Status LocalStore::Delete(const std::string& name) {
  RECON_RETURN_IF_ERROR(files_->Remove(PathOf(name)));
  const std::string parent = ParentOf(PathOf(name));
  RECON_ASSIGN_OR_RETURN(const bool is_there, files_->IsDirectory(parent));
  return is_there ? files_->SyncDirectory(parent) : absl::OkStatus();
}

}  // namespace recon
