#include "common/storage/local_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/fault_point.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

namespace fs = std::filesystem;
constexpr char kTemporary[] = ".tmp";

absl::Status Errno(int error, const std::string& what) {
  const std::string text =
      absl::StrCat(what, ": ", std::error_code(error, std::generic_category()).message());
  if (error == ENOENT) return absl::NotFoundError(text);
  if (error == EEXIST) return absl::AlreadyExistsError(text);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) return absl::ResourceExhaustedError(text);
  return absl::DataLossError(text);
}

// A file descriptor that closes itself.
class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0644)), path_(path) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool ok() const { return fd_ >= 0; }

  absl::Status WriteAll(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t written = write(fd_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return Errno(errno, absl::StrCat("write ", path_));
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status ReadAt(uint64_t offset, uint64_t size, char* out) {
    for (uint64_t done = 0; done < size;) {
      const ssize_t got = pread(fd_, out + done, size - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return Errno(errno, absl::StrCat("read ", path_));
      if (got == 0) {
        return absl::DataLossError(absl::StrCat(path_, " ends at byte ", offset + done, ", ", size,
                                                " bytes were expected from byte ", offset));
      }
      done += static_cast<uint64_t>(got);
    }
    return absl::OkStatus();
  }

  absl::Status Sync() {
    // A failed fsync is never retried: the kernel may have dropped the data and cleared the error.
    if (fsync(fd_) != 0) return Errno(errno, absl::StrCat("fsync ", path_));
    return absl::OkStatus();
  }

 private:
  int fd_;
  std::string path_;
};

absl::Status SyncDirectory(const std::string& path) {
  File directory(path, O_RDONLY | O_DIRECTORY);
  if (!directory.ok()) return Errno(errno, absl::StrCat("open ", path));
  return directory.Sync();
}

class LocalWriter : public ObjectStore::Writer {
 public:
  explicit LocalWriter(std::string path)
      : path_(std::move(path)),
        temporary_(path_ + kTemporary),
        file_(temporary_, O_WRONLY | O_CREAT | O_TRUNC) {}
  ~LocalWriter() override {
    if (!closed_) unlink(temporary_.c_str());
  }

  bool ok() const { return file_.ok(); }
  const std::string& temporary() const { return temporary_; }

  absl::Status Append(absl::string_view bytes) override {
    RECON_FAULT_POINT("store.append");
    return file_.WriteAll(bytes);
  }

  absl::Status Close() override {
    RECON_FAULT_POINT("store.before_sync");
    RECON_RETURN_IF_ERROR(file_.Sync());
    RECON_FAULT_POINT("store.before_rename");
    if (rename(temporary_.c_str(), path_.c_str()) != 0)
      return Errno(errno, absl::StrCat("rename ", temporary_));
    closed_ = true;
    RECON_FAULT_POINT("store.before_directory_sync");
    return SyncDirectory(fs::path(path_).parent_path());
  }

 private:
  std::string path_;
  std::string temporary_;
  File file_;
  bool closed_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalStore>> LocalStore::Open(const std::string& directory, bool writer) {
  std::error_code error;
  if (writer) fs::create_directories(directory, error);
  if (error) return Errno(error.value(), absl::StrCat("create ", directory));
  if (!fs::is_directory(directory, error)) {
    return absl::NotFoundError(absl::StrCat(directory, " is not a directory"));
  }
  if (writer) {
    fs::recursive_directory_iterator walk(directory, error);
    std::vector<fs::path> leftovers;
    for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
      if (walk->path().extension() == kTemporary) leftovers.push_back(walk->path());
    }
    for (const fs::path& path : leftovers) fs::remove(path, error);
    if (error) return Errno(error.value(), absl::StrCat("clean ", directory));
  }
  return std::unique_ptr<LocalStore>(new LocalStore(directory));
}

absl::StatusOr<std::unique_ptr<ObjectStore::Writer>> LocalStore::Create(const std::string& name) {
  const std::string path = absl::StrCat(directory_, "/", name);
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  if (error) return Errno(error.value(), absl::StrCat("create the directory of ", path));
  auto writer = std::make_unique<LocalWriter>(path);
  if (!writer->ok()) return Errno(errno, absl::StrCat("create ", path));
  return std::unique_ptr<ObjectStore::Writer>(std::move(writer));
}

absl::Status LocalStore::PutIfAbsent(const std::string& name, absl::string_view bytes) {
  const std::string path = absl::StrCat(directory_, "/", name);
  const std::string parent = fs::path(path).parent_path();
  const std::string temporary = path + kTemporary;
  std::error_code error;
  fs::create_directories(parent, error);
  if (error) return Errno(error.value(), absl::StrCat("create ", parent));
  {
    File file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
    if (!file.ok()) return Errno(errno, absl::StrCat("create ", temporary));
    absl::Status written = file.WriteAll(bytes);
    if (written.ok()) written = file.Sync();
    if (!written.ok()) {
      unlink(temporary.c_str());
      return written;
    }
  }
  RECON_FAULT_POINT("publish.before_link");
  // link() fails where rename() would replace.
  const int linked = link(temporary.c_str(), path.c_str());
  const int link_errno = errno;
  RECON_FAULT_POINT("publish.after_link");
  unlink(temporary.c_str());
  if (linked != 0) return Errno(link_errno, absl::StrCat("publish ", path));
  return SyncDirectory(parent);
}

absl::StatusOr<uint64_t> LocalStore::Size(const std::string& name) {
  const std::string path = absl::StrCat(directory_, "/", name);
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return Errno(errno, path);
  return static_cast<uint64_t>(info.st_size);
}

absl::StatusOr<std::string> LocalStore::Read(const std::string& name, uint64_t offset, uint64_t size) {
  RECON_ASSIGN_OR_RETURN(const uint64_t have, Size(name));
  const std::string path = absl::StrCat(directory_, "/", name);
  if (offset > have || size > have - offset) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", have, " bytes, ", size, " were expected from byte ", offset));
  }
  File file(path, O_RDONLY);
  if (!file.ok()) return Errno(errno, absl::StrCat("open ", path));
  std::string bytes(size, '\0');
  RECON_RETURN_IF_ERROR(file.ReadAt(offset, size, bytes.data()));
  return bytes;
}

absl::StatusOr<std::vector<std::string>> LocalStore::List(const std::string& prefix) {
  std::vector<std::string> names;
  std::error_code error;
  fs::recursive_directory_iterator walk(directory_, error);
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    if (!walk->is_regular_file(error) || walk->path().extension() == kTemporary) continue;
    const std::string name = walk->path().lexically_relative(directory_);
    if (absl::StartsWith(name, prefix)) names.push_back(name);
  }
  if (error) return Errno(error.value(), absl::StrCat("list ", directory_));
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status LocalStore::Delete(const std::string& name) {
  const std::string path = absl::StrCat(directory_, "/", name);
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return Errno(errno, absl::StrCat("delete ", path));
  return absl::OkStatus();
}

}  // namespace recon
