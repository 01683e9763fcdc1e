#include "tests/support/webhdfs_test_server.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace recon {
namespace {

constexpr char kRoot[] = "/webhdfs/v1";
// Its clock stands since the files were written.
constexpr int64_t kWrittenMs = 784111777000;
constexpr char kDate[] = "Sun, 06 Nov 1994 08:49:38 GMT";

HttpTestServer::Response Boolean(bool value) {
  return {200, absl::StrCat("{\"boolean\":", value ? "true" : "false", "}")};
}

HttpTestServer::Response Exception(int status, const std::string& name, const std::string& message) {
  return {status, absl::StrCat("{\"RemoteException\":{\"exception\":\"", name, "\",\"javaClassName\":\"x.",
                               name, "\",\"message\":\"", message, "\\n\\tat somewhere\"}}")};
}

std::string Status(const std::string& name, bool directory, size_t length) {
  return absl::StrCat("{\"length\":", length, ",\"owner\":\"me\",\"pathSuffix\":\"", name,
                      "\",\"modificationTime\":", kWrittenMs, ",\"type\":\"",
                      directory ? "DIRECTORY" : "FILE", "\"}");
}

std::string ParentOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

HttpTestServer::Response WebHdfsTestServer::Answer(const Request& request) {
  if (!absl::StartsWith(request.path, kRoot)) return {404, "<html>no such page</html>"};
  std::string path = request.path.substr(sizeof kRoot - 1);
  while (absl::EndsWith(path, "/")) path.pop_back();
  const std::string operation = request.Query("op");
  const bool moves_data = operation == "CREATE" || operation == "APPEND" || operation == "OPEN";
  MutexLock lock(&mu_);
  if (moves_data && request.Query("datanode").empty()) {
    if (operation != "CREATE" && files_.count(path) == 0) {
      return Exception(404, "FileNotFoundException", absl::StrCat("File ", path, " not found."));
    }
    std::string to = absl::StrCat("http://", address(), request.path, "?datanode=1");
    for (const auto& [name, value] : request.query) absl::StrAppend(&to, "&", name, "=", value);
    return {307, "", {{"Location", to}}};
  }
  const auto planned = faults_.find(operation);
  if (planned == faults_.end() || planned->second.times == 0 ||
      !absl::StrContains(path, planned->second.part))
    return Do(request, operation, path, nullptr);
  --planned->second.times;
  switch (planned->second.fault) {
    case Fault::kStandby:
      return Exception(403, "StandbyException", "Operation category READ is not supported in state standby");
    case Fault::kDropBefore:
      return {200, "", {}, /*drop=*/true};
    case Fault::kDropAfter:
      (void)Do(request, operation, path, nullptr);
      return {200, "", {}, /*drop=*/true};
    case Fault::kHalf:
    case Fault::kQuota:
      return Do(request, operation, path, &planned->second);
  }
  return {500, ""};
}

HttpTestServer::Response WebHdfsTestServer::Do(const Request& request, const std::string& operation,
                                               const std::string& path, const Planned* planned) {
  const auto file = files_.find(path);
  if (operation == "MKDIRS") {
    for (std::string at = path; !at.empty(); at = ParentOf(at)) {
      if (files_.count(at) > 0) return Exception(403, "FileAlreadyExistsException", "not a directory");
    }
    for (std::string at = path; !at.empty(); at = ParentOf(at)) directories_.insert(at);
    return Boolean(true);
  }
  if (operation == "GETFILESTATUS") {
    if (file != files_.end())
      return {200,
              absl::StrCat("{\"FileStatus\":", Status("", false, file->second.size()), "}"),
              {{"Date", kDate}}};
    if (directories_.count(path) > 0)
      return {200, absl::StrCat("{\"FileStatus\":", Status("", true, 0), "}"), {{"Date", kDate}}};
    return Exception(404, "FileNotFoundException", absl::StrCat("File does not exist: ", path));
  }
  if (operation == "LISTSTATUS") return List(path);
  if (operation == "DELETE") return Boolean(files_.erase(path) > 0 || directories_.erase(path) > 0);
  if (operation == "RENAME") {
    const std::string to = request.Query("destination");
    if (file == files_.end() || files_.count(to) > 0 || directories_.count(ParentOf(to)) == 0) {
      return Boolean(false);
    }
    files_[to] = file->second;
    files_.erase(path);
    return Boolean(true);
  }
  if (operation == "CREATE" || operation == "APPEND") {
    const std::string data =
        request.body.substr(0, planned == nullptr ? std::string::npos : request.body.size() / 2);
    if (operation == "CREATE") {
      for (std::string at = ParentOf(path); !at.empty(); at = ParentOf(at)) directories_.insert(at);
      files_[path] = data;
    } else {
      files_[path] += data;
    }
    Response response = {operation == "CREATE" ? 201 : 200, ""};
    response.drop = planned != nullptr && planned->fault == Fault::kHalf;
    return response;
  }
  if (operation == "OPEN") {
    uint64_t offset = 0, length = 0;
    if (!absl::SimpleAtoi(request.Query("offset"), &offset) ||
        !absl::SimpleAtoi(request.Query("length"), &length)) {
      return Exception(400, "IllegalArgumentException", "offset or length");
    }
    if (offset >= file->second.size()) {
      return Exception(403, "IOException", absl::StrCat("Offset=", offset, " out of the range"));
    }
    Response response = {200, file->second.substr(offset, length)};
    if (planned != nullptr) response.drop_after = response.body.size() / 2;
    return response;
  }
  return Exception(400, "IllegalArgumentException",
                   absl::StrCat("Invalid value for webhdfs parameter op: ", operation));
}

HttpTestServer::Response WebHdfsTestServer::List(const std::string& path) const {
  if (directories_.count(path) == 0) {
    return Exception(404, "FileNotFoundException", absl::StrCat("File ", path, " does not exist."));
  }
  std::string entries;
  const auto add = [&](const std::string& name, bool directory, size_t length) {
    if (name.empty() || ParentOf(name) != path) return;
    absl::StrAppend(&entries, entries.empty() ? "" : ",",
                    Status(name.substr(path.size() + 1), directory, length));
  };
  for (const std::string& name : directories_) add(name, true, 0);
  for (const auto& [name, bytes] : files_) add(name, false, bytes.size());
  return {200, absl::StrCat("{\"FileStatuses\":{\"FileStatus\":[", entries, "]}}")};
}

}  // namespace recon
