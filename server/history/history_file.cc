#include "server/history/history_file.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr absl::string_view kMagic = "RECONHS1";
constexpr uint64_t kHeaderBytes = 8 + 8 + 8;
// 1,024 workers' series and all events take a third of it.
constexpr uint64_t kHistoryBytesMax = uint64_t{128} << 20;
// So much it leaves free on the disk: the push log needs it more.
constexpr uint64_t kLeftFreeBytes = uint64_t{64} << 20;

}  // namespace

std::string HistoryPath(const std::string& data_directory) {
  return absl::StrCat(data_directory, "/history");
}

absl::StatusOr<uint64_t> WriteHistory(FileSystem* files, const std::string& data_directory,
                                      const JobHistory& history) {
  std::string body;
  if (!history.SerializeToString(&body)) return absl::InternalError("the history cannot be encoded");
  char header[kHeaderBytes];
  const uint64_t length = body.size();
  const uint64_t checksum = Hash64(body.data(), body.size());
  std::memcpy(header, kMagic.data(), kMagic.size());
  std::memcpy(header + 8, &length, sizeof length);
  std::memcpy(header + 16, &checksum, sizeof checksum);
  const std::string path = HistoryPath(data_directory);
  const std::string next = path + ".next";
  const absl::StatusOr<uint64_t> free = files->FreeBytes(data_directory);
  // A small one is written to the end: it does not matter.
  if (free.ok() && body.size() > kLeftFreeBytes / 64 && *free < body.size() + kLeftFreeBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": ", *free, " bytes are free on its disk; they are left to the push log"));
  }
  const auto write = [&]() -> absl::Status {
    RECON_ASSIGN_OR_RETURN(const auto file, files->Create(next));
    return file->Append({absl::string_view(header, kHeaderBytes), body});
  };
  absl::Status written = write();
  if (written.ok()) written = files->Rename(next, path);
  if (!written.ok()) {
    files->Remove(next).IgnoreError();  // What there is of it helps nobody on a full disk.
    return written;
  }
  return kHeaderBytes + body.size();
}

absl::Status SetHistoryAside(FileSystem* files, const std::string& data_directory) {
  const std::string path = HistoryPath(data_directory);
  return files->Rename(path, path + ".unread");
}

absl::StatusOr<JobHistory> ReadHistory(FileSystem* files, const std::string& data_directory) {
  const std::string path = HistoryPath(data_directory);
  RECON_ASSIGN_OR_RETURN(const uint64_t size, files->Size(path));
  const auto damaged = [&](const std::string& what) {
    return absl::DataLossError(absl::StrCat(path, ": ", what));
  };
  if (size < kHeaderBytes || size > kHistoryBytesMax)
    return damaged(absl::StrCat(size, " bytes, expected ", kHeaderBytes, " to ", kHistoryBytesMax));
  RECON_ASSIGN_OR_RETURN(const std::string bytes, files->Read(path, 0, size));
  if (absl::string_view(bytes).substr(0, kMagic.size()) != kMagic)
    return damaged("it does not begin as a history does");
  uint64_t length = 0, expected = 0;
  std::memcpy(&length, bytes.data() + 8, sizeof length);
  std::memcpy(&expected, bytes.data() + 16, sizeof expected);
  if (length != size - kHeaderBytes)
    return damaged(absl::StrCat("it says that it has ", length, " bytes, and has ", size - kHeaderBytes));
  const absl::string_view body = absl::string_view(bytes).substr(kHeaderBytes);
  const uint64_t found = Hash64(body.data(), body.size());
  if (found != expected)
    return damaged(absl::StrCat("checksum ", absl::Hex(found), ", expected ", absl::Hex(expected)));
  JobHistory history;
  if (!history.ParseFromArray(body.data(), static_cast<int>(body.size())))
    return damaged("it cannot be parsed");
  return history;
}

}  // namespace recon
