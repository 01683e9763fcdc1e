#include "common/storage/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/owned_fd.h"
#include "common/base/pool_allocator.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"
#include "common/storage/aligned_buffer.h"
#include "common/storage/errno_status.h"
#include "common/storage/patience.h"

namespace recon {
namespace {

namespace fs = std::filesystem;

// Reads of this size and more go past the page cache, in pieces of kDirectPiece at most.
constexpr uint64_t kDirectBytes = uint64_t{128} << 10;
constexpr uint64_t kDirectPiece = uint64_t{1} << 20;

// What a file system says that lacks an operation. (Linux says EPERM of hard links.)
bool NotSupported(int error) { return error == EPERM || error == EOPNOTSUPP || error == ENOSYS; }

class LocalFile : public FileSystem::File {
 public:
  LocalFile(const std::string& path, int flags)
      : opened_(OpenRegularFile(path, flags)), fd_(opened_.fd.get()), path_(path) {}
  LocalFile(const LocalFile&) = delete;
  LocalFile& operator=(const LocalFile&) = delete;

  bool ok() const { return opened_.ok(); }
  // Why it is not; `what` for an error of the operating system.
  absl::Status Failure(const std::string& what) const {
    if (opened_.other.empty()) return ErrnoStatus(opened_.error, absl::StrCat(what, " ", path_));
    return absl::FailedPreconditionError(opened_.status(path_).message());
  }

  absl::Status Append(absl::Span<const absl::string_view> pieces) override {
    PooledVector<iovec> left;
    left.reserve(pieces.size());
    for (const absl::string_view piece : pieces) {
      if (!piece.empty()) left.push_back({const_cast<char*>(piece.data()), piece.size()});
    }
    for (size_t first = 0; first < left.size();) {
      const auto count = static_cast<int>(std::min<size_t>(left.size() - first, IOV_MAX));
      ssize_t written = pwritev(fd_, &left[first], count, static_cast<off_t>(offset_));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return ErrnoStatus(errno, absl::StrCat("write ", path_));
      offset_ += static_cast<uint64_t>(written);
      while (first < left.size() && static_cast<size_t>(written) >= left[first].iov_len) {
        written -= static_cast<ssize_t>(left[first++].iov_len);
      }
      if (written > 0) {
        left[first].iov_base = static_cast<char*>(left[first].iov_base) + written;
        left[first].iov_len -= static_cast<size_t>(written);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Allocate(uint64_t bytes) override {
    int error = EINTR;
    while (error == EINTR) error = posix_fallocate(fd_, 0, static_cast<off_t>(bytes));
    return error == 0 ? absl::OkStatus() : ErrnoStatus(error, absl::StrCat("allocate ", path_));
  }

  void StartWriting() override {
    sync_file_range(fd_, static_cast<off_t>(started_), static_cast<off_t>(offset_ - started_),
                    SYNC_FILE_RANGE_WRITE);
    started_ = offset_;
  }

  absl::Status Sync() override {
    int synced = fdatasync(fd_);
    while (synced != 0 && errno == EINTR) synced = fdatasync(fd_);
    if (synced != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", path_));
    return absl::OkStatus();
  }

  // Of a file that was opened with O_DIRECT. False if it could not be read that way.
  bool ReadDirect(uint64_t offset, uint64_t size, char* out) {
    static thread_local AlignedBuffer buffer;
    const uint64_t end = offset + size;
    const bool aligned = AlignedBuffer::Down(offset) == offset &&
                         reinterpret_cast<uintptr_t>(out) % AlignedBuffer::kAlign == 0;
    for (uint64_t at = offset; at < end;) {
      const uint64_t begin = AlignedBuffer::Down(at);
      // The last, incomplete block never goes to `out`: the disk writes all of it.
      const bool in_place = aligned && begin == at && AlignedBuffer::Down(end) > at;
      char* const to = in_place ? out + (at - offset) : buffer.Reserve(kDirectPiece);
      const uint64_t want = in_place ? std::min(kDirectPiece, AlignedBuffer::Down(end) - at)
                                     : std::min(kDirectPiece, AlignedBuffer::Up(end - begin));
      const ssize_t got = pread(fd_, to, want, static_cast<off_t>(begin));
      if (got <= 0 || begin + static_cast<uint64_t>(got) <= at) return false;
      const uint64_t stop = std::min(end, begin + static_cast<uint64_t>(got));
      if (!in_place) std::memcpy(out + (at - offset), to + (at - begin), stop - at);
      at = stop;
    }
    return true;
  }

  absl::Status ReadAt(uint64_t offset, uint64_t size, char* out) {
    for (uint64_t done = 0; done < size;) {
      const ssize_t got = pread(fd_, out + done, size - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, absl::StrCat("read ", path_));
      if (got == 0) {
        return absl::DataLossError(absl::StrCat(path_, " ends at byte ", offset + done, ", ", size,
                                                " bytes were expected from byte ", offset));
      }
      done += static_cast<uint64_t>(got);
    }
    return absl::OkStatus();
  }

 private:
  const OpenedFile opened_;
  const int fd_;
  const std::string path_;
  uint64_t offset_ = 0;
  uint64_t started_ = 0;  // To be written, up to here.
};

// Each operation by itself, once.
namespace once {

absl::StatusOr<std::unique_ptr<FileSystem::File>> Create(const std::string& path) {
  auto file = std::make_unique<LocalFile>(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (!file->ok()) return file->Failure("create");
  return std::unique_ptr<FileSystem::File>(std::move(file));
}

absl::StatusOr<uint64_t> Size(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("look at ", path));
  if (S_ISREG(info.st_mode)) return static_cast<uint64_t>(info.st_size);
  return absl::FailedPreconditionError(CheckRegularFile(path).message());
}

// What the clock of a directory's file system says.
absl::Time TimeOfFileSystem(const std::string& beside) {
  const std::string probe = absl::StrCat(beside, ".", absl::Hex(RandomNonZero()), ".tmp");
  const OpenedFile file = OpenRegularFile(probe, O_WRONLY | O_CREAT | O_EXCL);
  struct stat info;
  const bool known = file.ok() && fstat(file.fd.get(), &info) == 0;
  if (file.ok()) unlink(probe.c_str());
  return known ? absl::TimeFromTimespec(info.st_mtim) : WallNow();
}

absl::StatusOr<absl::Duration> Age(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("look at ", path));
  return TimeOfFileSystem(path) - absl::TimeFromTimespec(info.st_mtim);
}

absl::Status ReadInto(const std::string& path, uint64_t offset, uint64_t size, char* out) {
  if (size >= kDirectBytes) {
    // Past the page cache: what is read once in a large piece would only be copied there. Where the file
    // system cannot do that, through it.
    LocalFile direct(path, O_RDONLY | O_DIRECT);
    if (direct.ok() && direct.ReadDirect(offset, size, out)) return absl::OkStatus();
  }
  LocalFile file(path, O_RDONLY);
  if (!file.ok()) return file.Failure("open");
  return file.ReadAt(offset, size, out);
}

absl::Status Link(const std::string& from, const std::string& to) {
  if (link(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
  if (!NotSupported(errno)) return ErrnoStatus(errno, absl::StrCat("link ", to));
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return absl::OkStatus();
  if (errno != EINVAL && !NotSupported(errno)) return ErrnoStatus(errno, absl::StrCat("rename to ", to));
  return absl::FailedPreconditionError(
      absl::StrCat(to, ": its file system can neither link files nor rename them without replacing others: ",
                   "two servers could spoil each other's snapshots there"));
}

absl::Status SyncDirectory(const std::string& path) {
  const OwnedFd directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
  if (fsync(directory.get()) != 0) return ErrnoStatus(errno, absl::StrCat("fsync ", path));
  return absl::OkStatus();
}

absl::StatusOr<bool> IsDirectory(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) == 0) return S_ISDIR(info.st_mode);
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return ErrnoStatus(errno, absl::StrCat("look at ", path));
}

absl::StatusOr<std::vector<std::string>> List(const std::string& directory) {
  std::vector<std::string> names;
  RECON_ASSIGN_OR_RETURN(const bool is_there, IsDirectory(directory));
  if (!is_there) return names;
  std::error_code error;
  fs::recursive_directory_iterator walk(directory, error);
  for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
    std::error_code gone;  // It was removed since.
    // Pipes and devices, too: whoever reads one is told what it is.
    if (walk->exists(gone) && !walk->is_directory(gone))
      names.push_back(walk->path().lexically_relative(directory));
    if (gone && gone.value() != ENOENT) error = gone;
    if (error) break;
  }
  if (error) return ErrnoStatus(error.value(), absl::StrCat("list ", directory));
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<uint64_t> FreeBytes(const std::string& directory) {
  struct statvfs info;
  if (statvfs(directory.c_str(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("look at the file system of ", directory));
  }
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace once

class LocalFileSystem : public FileSystem {
 public:
  LocalFileSystem() : patience_(PatienceFromEnvironment().value_or(limits::kStorePatience)) {}

  absl::StatusOr<std::unique_ptr<File>> Create(const std::string& path) override {
    return Patiently([&] { return once::Create(path); });
  }
  absl::StatusOr<uint64_t> Size(const std::string& path) override {
    return Patiently([&] { return once::Size(path); });
  }
  absl::StatusOr<absl::Duration> Age(const std::string& path) override {
    return Patiently([&] { return once::Age(path); });
  }
  absl::Status ReadInto(const std::string& path, uint64_t offset, uint64_t size, char* out) override {
    return RetryUnavailable(patience_, [&] { return once::ReadInto(path, offset, size, out); });
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    return RetryUnavailable(patience_, [&] {
      if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
      return ErrnoStatus(errno, absl::StrCat("rename ", from));
    });
  }

  absl::Status Link(const std::string& from, const std::string& to) override {
    return RetryUnavailable(patience_, [&] { return once::Link(from, to); });
  }

  absl::Status Remove(const std::string& path) override {
    return RetryUnavailable(patience_, [&] {
      if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
      return ErrnoStatus(errno, absl::StrCat("delete ", path));
    });
  }

  absl::Status SyncDirectory(const std::string& path) override {
    // Not once more: as with Sync(), the second attempt may succeed without what the first one dropped.
    return once::SyncDirectory(path);
  }

  absl::Status CreateDirectories(const std::string& path) override {
    RECON_ASSIGN_OR_RETURN(const bool is_there, IsDirectory(path));
    if (is_there) return absl::OkStatus();
    const std::string parent = fs::absolute(path).lexically_normal().parent_path();
    if (parent != path) RECON_RETURN_IF_ERROR(CreateDirectories(parent));
    RECON_RETURN_IF_ERROR(RetryUnavailable(patience_, [&] {
      std::error_code error;
      fs::create_directory(path, error);
      return error ? ErrnoStatus(error.value(), absl::StrCat("create ", path)) : absl::OkStatus();
    }));
    return SyncDirectory(parent);
  }

  absl::StatusOr<bool> IsDirectory(const std::string& path) override {
    return Patiently([&] { return once::IsDirectory(path); });
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    return Patiently([&] { return once::List(directory); });
  }
  absl::StatusOr<uint64_t> FreeBytes(const std::string& directory) override {
    return Patiently([&] { return once::FreeBytes(directory); });
  }
  void CapPatience(absl::Duration most) override { patience_.Cap(most); }

 private:
  // What `attempt` returns, a StatusOr, once it is something else than Unavailable or patience is over.
  template <typename Attempt>
  std::invoke_result_t<Attempt> Patiently(const Attempt& attempt) {
    std::invoke_result_t<Attempt> result = absl::UnavailableError("");
    RetryUnavailable(patience_, [&] {
      result = attempt();
      return result.status();
    }).IgnoreError();
    return result;
  }

  Patience patience_;
};

}  // namespace

absl::StatusOr<std::string> FileSystem::Read(const std::string& path, uint64_t offset, uint64_t size) {
  // Before it allocates: sizes may come from a damaged file.
  RECON_ASSIGN_OR_RETURN(const uint64_t have, Size(path));
  if (offset > have || size > have - offset) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", have, " bytes, ", size, " were expected from byte ", offset));
  }
  std::string bytes(size, '\0');
  RECON_RETURN_IF_ERROR(ReadInto(path, offset, size, bytes.data()));
  return bytes;
}

FileSystem* FileSystem::Local() {
  static auto* const local = new LocalFileSystem;
  return local;
}

}  // namespace recon
