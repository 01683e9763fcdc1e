#include "common/storage/hdfs_messages.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/storage/http_client.h"
#include "nlohmann/json.hpp"

namespace recon {
namespace {

using Json = nlohmann::json;

Json Parse(absl::string_view json) {
  return Json::parse(json.begin(), json.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
}

// The member, or null.
const Json& At(const Json& object, const char* name) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

std::string TextAt(const Json& object, const char* name) {
  const Json& text = At(object, name);
  return text.is_string() ? text.get<std::string>() : "";
}

absl::Status NotTheApi(absl::string_view json) {
  return absl::FailedPreconditionError(
      absl::StrCat("not the answer to expect of WebHDFS: ", json.substr(0, 200)));
}

bool ParseFile(const Json& status, HdfsFile* file) {
  file->name = TextAt(status, "pathSuffix");
  const std::string type = TextAt(status, "type");
  file->directory = type == "DIRECTORY";
  const Json& length = At(status, "length");
  if (!length.is_number_unsigned() || type.empty()) return false;
  file->bytes = length.get<uint64_t>();
  const Json& written_ms = At(status, "modificationTime");
  if (written_ms.is_number_integer()) file->written = absl::FromUnixMillis(written_ms.get<int64_t>());
  return true;
}

}  // namespace

absl::StatusOr<HdfsFile> ParseHdfsStatus(absl::string_view json) {
  HdfsFile file;
  const Json parsed = Parse(json);
  if (!ParseFile(At(parsed, "FileStatus"), &file)) return NotTheApi(json);
  return file;
}

absl::StatusOr<std::vector<HdfsFile>> ParseHdfsListing(absl::string_view json) {
  const Json parsed = Parse(json);
  const Json& statuses = At(At(parsed, "FileStatuses"), "FileStatus");
  if (!statuses.is_array()) return NotTheApi(json);
  std::vector<HdfsFile> files;
  for (const Json& status : statuses) {
    HdfsFile file;
    if (!ParseFile(status, &file)) return NotTheApi(json);
    if (file.name.empty() || absl::StrContains(file.name, "/")) return NotTheApi(json);
    files.push_back(std::move(file));
  }
  return files;
}

absl::StatusOr<bool> ParseHdfsBoolean(absl::string_view json) {
  const Json parsed = Parse(json);
  const Json& value = At(parsed, "boolean");
  if (!value.is_boolean()) return NotTheApi(json);
  return value.get<bool>();
}

absl::Status ParseHdfsError(int http_status, absl::string_view json, const std::string& text) {
  const Json parsed = Parse(json);
  const Json& remote = At(parsed, "RemoteException");
  const std::string exception = TextAt(remote, "exception");
  std::string message = absl::StrCat(text, ": ", http_status, " ", exception);
  const std::string detail = TextAt(remote, "message");
  if (!detail.empty()) absl::StrAppend(&message, ": ", detail.substr(0, detail.find('\n')));
  const auto is = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (exception == name) return true;
    }
    return false;
  };
  if (is({"FileNotFoundException"})) return absl::NotFoundError(message);
  if (is({"FileAlreadyExistsException"})) return absl::AlreadyExistsError(message);
  if (is({"AccessControlException", "SecurityException", "AuthorizationException", "AuthenticationException",
          "InvalidToken"})) {
    return absl::PermissionDeniedError(message);
  }
  if (absl::EndsWith(exception, "QuotaExceededException")) return absl::ResourceExhaustedError(message);
  if (is({"ParentNotDirectoryException", "PathIsNotEmptyDirectoryException", "InvalidPathException",
          "PathComponentTooLongException", "MaxDirectoryItemsExceededException", "IllegalArgumentException",
          "HadoopIllegalArgumentException", "UnsupportedOperationException"})) {
    return absl::FailedPreconditionError(message);
  }
  // Any other IOException has this status, and most of them pass.
  if (http_status == 403 && !exception.empty()) return absl::UnavailableError(message);
  // Not Hadoop's answer: it says nothing about files.
  if (http_status == 404) return absl::UnavailableError(message);
  return StatusOfHttp(http_status, message);
}

}  // namespace recon
