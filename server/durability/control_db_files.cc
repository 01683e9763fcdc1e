#include "server/durability/control_db_files.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/regular_file.h"
#include "common/storage/patience.h"
#include "rocksdb/env.h"
#include "rocksdb/file_system.h"

namespace recon {
namespace {

// Ends the process unless `status` is OK.
rocksdb::IOStatus MustSucceed(rocksdb::IOStatus status, const std::string& what, const std::string& path) {
  if (status.ok()) return status;
  LogCritical("the control database cannot be used, so nothing more can be acknowledged: {} {}: {}", what,
              path, status.ToString());
  std::_Exit(1);
}

// Something else than a failure: success, a file that is not there, an operation that RocksDB lacks.
bool IsAnswer(const rocksdb::IOStatus& status) {
  return status.ok() || status.IsNotFound() || status.IsPathNotFound() || !status.IsIOError();
}

class WritableFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  WritableFile(std::string path, std::unique_ptr<rocksdb::FSWritableFile> file)
      : FSWritableFileOwnerWrapper(std::move(file)), path_(std::move(path)) {}

  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* debug) override {
    return MustSucceed(FSWritableFileWrapper::Append(data, options, debug), "write", path_);
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           const rocksdb::DataVerificationInfo& info,
                           rocksdb::IODebugContext* debug) override {
    return MustSucceed(FSWritableFileWrapper::Append(data, options, info, debug), "write", path_);
  }
  rocksdb::IOStatus Flush(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
    return MustSucceed(FSWritableFileWrapper::Flush(options, debug), "flush", path_);
  }
  rocksdb::IOStatus Sync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
    return MustSucceed(FSWritableFileWrapper::Sync(options, debug), "fsync", path_);
  }
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
    return MustSucceed(FSWritableFileWrapper::Fsync(options, debug), "fsync", path_);
  }
  rocksdb::IOStatus Close(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
    return MustSucceed(FSWritableFileWrapper::Close(options, debug), "close", path_);
  }

 private:
  const std::string path_;
};

class Directory : public rocksdb::FSDirectoryWrapper {
 public:
  Directory(std::string path, std::unique_ptr<rocksdb::FSDirectory> directory)
      : FSDirectoryWrapper(std::move(directory)), path_(std::move(path)) {}

  rocksdb::IOStatus Fsync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
    return MustSucceed(FSDirectoryWrapper::Fsync(options, debug), "fsync", path_);
  }
  rocksdb::IOStatus FsyncWithDirOptions(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug,
                                        const rocksdb::DirFsyncOptions& directory) override {
    return MustSucceed(FSDirectoryWrapper::FsyncWithDirOptions(options, debug, directory), "fsync", path_);
  }

 private:
  const std::string path_;
};

class Files : public rocksdb::FileSystemWrapper {
 public:
  Files()
      : FileSystemWrapper(rocksdb::FileSystem::Default()),
        patience_(PatienceFromEnvironment().value_or(limits::kStorePatience)) {}

  const char* Name() const override { return "recon"; }

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = MustSucceed(
        Patiently("create", path, [&] { return target()->NewWritableFile(path, options, file, debug); }),
        "create", path);
    *file = std::make_unique<WritableFile>(path, std::move(*file));
    return status;
  }
  rocksdb::IOStatus NewSequentialFile(const std::string& path, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* file,
                                      rocksdb::IODebugContext* debug) override {
    return Ask("open", path, [&] { return target()->NewSequentialFile(path, options, file, debug); });
  }
  rocksdb::IOStatus NewRandomAccessFile(const std::string& path, const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                        rocksdb::IODebugContext* debug) override {
    return Ask("open", path, [&] { return target()->NewRandomAccessFile(path, options, file, debug); });
  }
  rocksdb::IOStatus NewDirectory(const std::string& path, const rocksdb::IOOptions& options,
                                 std::unique_ptr<rocksdb::FSDirectory>* directory,
                                 rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status =
        Ask("open", path, [&] { return target()->NewDirectory(path, options, directory, debug); });
    if (status.ok()) *directory = std::make_unique<Directory>(path, std::move(*directory));
    return status;
  }
  rocksdb::IOStatus FileExists(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override {
    return Ask("look for", path, [&] { return target()->FileExists(path, options, debug); });
  }
  rocksdb::IOStatus GetChildren(const std::string& path, const rocksdb::IOOptions& options,
                                std::vector<std::string>* names, rocksdb::IODebugContext* debug) override {
    return Ask("list", path, [&] { return target()->GetChildren(path, options, names, debug); });
  }
  rocksdb::IOStatus GetFileSize(const std::string& path, const rocksdb::IOOptions& options, uint64_t* size,
                                rocksdb::IODebugContext* debug) override {
    return Ask("stat", path, [&] { return target()->GetFileSize(path, options, size, debug); });
  }
  rocksdb::IOStatus GetFileModificationTime(const std::string& path, const rocksdb::IOOptions& options,
                                            uint64_t* time, rocksdb::IODebugContext* debug) override {
    return Ask("stat", path, [&] { return target()->GetFileModificationTime(path, options, time, debug); });
  }
  rocksdb::IOStatus IsDirectory(const std::string& path, const rocksdb::IOOptions& options, bool* is,
                                rocksdb::IODebugContext* debug) override {
    return Ask("stat", path, [&] { return target()->IsDirectory(path, options, is, debug); });
  }
  rocksdb::IOStatus CreateDirIfMissing(const std::string& path, const rocksdb::IOOptions& options,
                                       rocksdb::IODebugContext* debug) override {
    return Ask("create", path, [&] { return target()->CreateDirIfMissing(path, options, debug); });
  }
  // The commit point of a new manifest.
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
    return MustSucceed(
        Patiently("rename", from, [&] { return target()->RenameFile(from, to, options, debug); }), "rename",
        from);
  }
  rocksdb::IOStatus DeleteFile(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* debug) override {
    return Ask("delete", path, [&] { return target()->DeleteFile(path, options, debug); });
  }

 private:
  // RocksDB's open makes new files and then looks around once more; after an error there
  // Debian's build of 7.8 aborts while it closes them.
  rocksdb::IOStatus Ask(const char* what, const std::string& path,
                        absl::FunctionRef<rocksdb::IOStatus()> attempt) {
    rocksdb::IOStatus status = Patiently(what, path, attempt);
    return IsAnswer(status) ? status : MustSucceed(std::move(status), what, path);
  }
  // Calls `attempt` again while its error may pass, for as long as patience lasts.
  rocksdb::IOStatus Patiently(const char* what, const std::string& path,
                              absl::FunctionRef<rocksdb::IOStatus()> attempt) {
    rocksdb::IOStatus status;
    RetryUnavailable(patience_, [&] {
      status = attempt();
      return IsAnswer(status) ? absl::OkStatus() : FromRocks(status, absl::StrCat(what, " ", path));
    }).IgnoreError();
    return status;
  }

  const Patience patience_;
};

}  // namespace

absl::Status FromRocks(const rocksdb::Status& status, const std::string& what) {
  if (status.ok()) return absl::OkStatus();
  const std::string text = absl::StrCat("control database: ", what, ": ", status.ToString());
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(text);
  if (status.IsCorruption() || status.IsPathNotFound()) return absl::DataLossError(text);
  // RocksDB keeps the error's text only. Whoever has the lock keeps it.
  if (absl::StrContains(text, "lock ")) return absl::FailedPreconditionError(text);
  if (absl::StrContains(text, "Permission denied") || absl::StrContains(text, "Read-only file system")) {
    return absl::PermissionDeniedError(text);
  }
  return absl::UnavailableError(text);
}

absl::Status CheckControlDbFiles(const std::string& directory) {
  std::error_code error;
  if (std::filesystem::exists(directory, error) && !std::filesystem::is_directory(directory, error)) {
    return absl::FailedPreconditionError(absl::StrCat("control database: ", directory, " is no directory"));
  }
  // What cannot be listed is said by the database.
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    const absl::Status found = CheckRegularFile(entry.path());
    if (!absl::IsInvalidArgument(found) || entry.is_directory(error)) continue;
    return absl::FailedPreconditionError(absl::StrCat("control database: ", found.message()));
  }
  return absl::OkStatus();
}

std::unique_ptr<rocksdb::Env> MakeControlDbEnv() {
  return rocksdb::NewCompositeEnv(std::make_shared<Files>());
}

}  // namespace recon
