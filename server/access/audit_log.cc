#include "server/access/audit_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clipped_text.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace recon {
namespace {

constexpr uint64_t kFileBytesMax = uint64_t{8} << 20;
constexpr size_t kTextBytesMax = 1024;

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path) {
  std::unique_ptr<AuditLog> log(new AuditLog(path));
  RECON_RETURN_IF_ERROR(log->Reopen());
  return log;
}

absl::Status AuditLog::Reopen() {
  // Without waiting: a pipe without a reader would block.
  fd_ =
      OwnedFd(open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  const int error = errno;
  struct stat found {};
  if (fd_.get() < 0 && error != ELOOP && error != ENXIO) {
    return absl::ErrnoToStatus(error, absl::StrCat("open ", path_));
  }
  if (fd_.get() < 0 || fstat(fd_.get(), &found) != 0 || !S_ISREG(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path_, " is a link or no regular file: remove it"));
  }
  bytes_ = static_cast<uint64_t>(found.st_size);
  return absl::OkStatus();
}

void AuditLog::Note(Entry entry) {
  for (std::string* text :
       {&entry.call, &entry.from, &entry.who, &entry.roles, &entry.detail, &entry.result}) {
    *text = ClippedText(*text, kTextBytesMax);
  }
  uint64_t dropped = 0;
  {
    MutexLock lock(&mu_);
    if (waiting_ >= limits::kAuditLinesMax) {
      ++dropped_;
      return;
    }
    ++waiting_;
    dropped = std::exchange(dropped_, 0);
  }
  lane_.Post([this, entry = std::move(entry), dropped] {
    Write(entry, dropped);
    MutexLock lock(&mu_);
    RECON_CHECK_GT(waiting_, 0);
    --waiting_;
  });
}

void AuditLog::Flush() {
  lane_.RunAndWait([] {});
}

void AuditLog::Write(const Entry& entry, uint64_t dropped) {
  RECON_CHECK(lane_.IsCurrent());
  nlohmann::ordered_json json;
  json["time"] = absl::FormatTime(absl::RFC3339_full, entry.time, absl::UTCTimeZone());
  json["call"] = entry.call;
  json["from"] = entry.from;
  json["who"] = entry.who;
  json["roles"] = entry.roles;
  if (!entry.detail.empty()) json["detail"] = entry.detail;
  json["result"] = entry.result;
  if (dropped > 0) json["lines_dropped_before"] = dropped;
  // What is no UTF-8 is replaced.
  const std::string line =
      json.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace) + "\n";
  const bool full = bytes_ + line.size() > kFileBytesMax;
  if (fd_.get() < 0 || (full && rename(path_.c_str(), absl::StrCat(path_, ".1").c_str()) == 0)) {
    if (const absl::Status opened = Reopen(); !opened.ok() && !std::exchange(failed_, true)) {
      LogError("the audit log ends: {}", opened.message());
    }
  }
  const ssize_t written = fd_.get() < 0 ? -1 : write(fd_.get(), line.data(), line.size());
  if (written > 0) bytes_ += static_cast<uint64_t>(written);
  const bool failed = written != static_cast<ssize_t>(line.size());
  if (failed && !failed_) LogError("{} cannot be written: a line of the audit log is lost", path_);
  failed_ = failed;
}

}  // namespace recon
