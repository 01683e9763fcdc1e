#include "common/storage/hdfs_store.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr char kTemporary[] = ".tmp";
constexpr int kDepthMax = 16;

std::string TemporaryOf(const std::string& name) {
  return absl::StrCat(name, ".", absl::Hex(RandomNonZero(), absl::kZeroPad16), kTemporary);
}

HttpClient::Options ClientOptions(const HdfsStore::Options& options) {
  HttpClient::Options client;
  client.ca_file = options.ca_file;
  return client;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

// Fills a temporary file, a part at a time.
class HdfsStore::FileWriter : public ObjectStore::Writer {
 public:
  FileWriter(HdfsStore* store, std::string name)
      : store_(store), name_(std::move(name)), temporary_(TemporaryOf(name_)) {}

  ~FileWriter() override {
    if (!created_ || closed_) return;
    const absl::Status removed = store_->Delete(temporary_);
    if (!removed.ok()) LogWarn("a file that was given up stays: {}", removed.message());
  }

  absl::Status Append(absl::string_view bytes) override {
    part_.append(bytes.data(), bytes.size());
    return part_.size() < limits::kStorePartBytes ? absl::OkStatus() : SendPart();
  }

  absl::Status Close() override {
    RECON_RETURN_IF_ERROR(Flush());
    RECON_ASSIGN_OR_RETURN(Renamed renamed, store_->Rename(temporary_, name_));
    if (renamed == Renamed::kNot) {
      // Only what is there in full takes another's place.
      RECON_RETURN_IF_ERROR(store_->StatusOf(temporary_).status());
      RECON_RETURN_IF_ERROR(store_->Delete(name_));
      RECON_ASSIGN_OR_RETURN(renamed, store_->Rename(temporary_, name_));
    }
    if (renamed == Renamed::kPerhaps) {
      RECON_ASSIGN_OR_RETURN(const HdfsFile there, store_->StatusOf(name_));
      if (there.bytes == bytes_) renamed = Renamed::kYes;
    }
    if (renamed != Renamed::kYes) {
      return absl::AbortedError(absl::StrCat(store_->where_, "/", name_, " cannot be put in place"));
    }
    closed_ = true;
    return absl::OkStatus();
  }

  // As PutIfAbsent() of `bytes`, which are all that was appended.
  absl::Status CloseIfAbsent(absl::string_view bytes) {
    RECON_RETURN_IF_ERROR(Flush());
    RECON_ASSIGN_OR_RETURN(const Renamed renamed, store_->Rename(temporary_, name_));
    closed_ = renamed != Renamed::kNot;
    if (renamed == Renamed::kYes) return absl::OkStatus();
    RECON_ASSIGN_OR_RETURN(const uint64_t size, store_->Size(name_));
    if (renamed == Renamed::kPerhaps && size == bytes.size()) {
      RECON_ASSIGN_OR_RETURN(const std::string there, store_->Read(name_, 0, size));
      if (there == bytes) return absl::OkStatus();
    }
    return absl::AlreadyExistsError(absl::StrCat(store_->where_, "/", name_, " is there already"));
  }

 private:
  absl::Status Flush() { return part_.empty() && created_ ? absl::OkStatus() : SendPart(); }

  absl::Status SendPart() {
    RECON_RETURN_IF_ERROR(created_ ? AppendPart() : CreateFile());
    bytes_ += part_.size();
    part_.clear();
    // Hadoop 2.7's datanodes answer that all is well when a quota or a full disk has cut it short.
    RECON_ASSIGN_OR_RETURN(const HdfsFile file, store_->StatusOf(temporary_));
    if (file.bytes == bytes_) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(store_->where_, "/", temporary_, " has ", file.bytes,
                                                     " of ", bytes_,
                                                     " bytes written: a quota, or no room left?"));
  }

  absl::Status CreateFile() {
    RECON_RETURN_IF_ERROR(store_->MakeDirectoryOf(name_));
    created_ = true;  // Perhaps, from here on.
    return RetryUnavailable(store_->patience_, [&] {
      HttpRequest request;
      request.method = "PUT";
      request.body = part_;
      return store_->TransferOnce(request, temporary_, "CREATE&overwrite=true").status();
    });
  }

  // What an append that failed has left behind is not sent again.
  absl::Status AppendPart() {
    uint64_t sent = 0;
    bool first = true;
    return RetryUnavailable(store_->patience_, [&]() -> absl::Status {
      if (!std::exchange(first, false)) {
        RECON_ASSIGN_OR_RETURN(const HdfsFile file, store_->StatusOnce(temporary_));
        if (file.bytes < bytes_ || file.bytes > bytes_ + part_.size()) {
          return absl::DataLossError(absl::StrCat(store_->where_, "/", temporary_, " has ", file.bytes,
                                                  " bytes, ", bytes_, " or a few more were expected"));
        }
        sent = file.bytes - bytes_;
        if (sent == part_.size()) return absl::OkStatus();
      }
      HttpRequest request;
      request.method = "POST";
      request.body = absl::string_view(part_).substr(sent);
      return store_->TransferOnce(request, temporary_, "APPEND").status();
    });
  }

  HdfsStore* const store_;
  const std::string name_, temporary_;
  std::string part_;
  uint64_t bytes_ = 0;  // In the file.
  bool created_ = false, closed_ = false;
};

HdfsStore::Options HdfsStore::OptionsFromEnvironment() {
  Options options;
  options.user = Environment("HADOOP_USER_NAME");
  if (options.user.empty()) options.user = Environment("USER");
  options.ca_file = Environment("SSL_CERT_FILE");
  return options;
}

HdfsStore::HdfsStore(const std::string& host, const std::string& directory, const Options& options)
    : where_(absl::StrCat(options.tls ? "swebhdfs://" : "webhdfs://", host, directory)),
      directory_(directory),
      base_url_(absl::StrCat(options.tls ? "https://" : "http://", host, "/webhdfs/v1")),
      options_(options),
      patience_(options.patience),
      http_(ClientOptions(options)) {}

absl::StatusOr<std::unique_ptr<HdfsStore>> HdfsStore::Open(const std::string& host,
                                                           const std::string& directory,
                                                           const Options& options, bool writer) {
  std::unique_ptr<HdfsStore> store(new HdfsStore(host, directory, options));
  if (writer) RECON_RETURN_IF_ERROR(store->Ask("PUT", "", "MKDIRS").status());
  RECON_ASSIGN_OR_RETURN(const HdfsFile there, store->StatusOf(""));
  if (!there.directory) return absl::NotFoundError(store->where_ + " is not a directory");
  return store;
}

absl::Status HdfsStore::RemoveLeftovers(const std::vector<std::string>& prefixes) {
  std::vector<std::string> names;
  RECON_RETURN_IF_ERROR(ListBelow("", 0, &names));
  for (const std::string& name : names) {
    const bool below = std::any_of(prefixes.begin(), prefixes.end(),
                                   [&](const std::string& prefix) { return absl::StartsWith(name, prefix); });
    if (below && absl::EndsWith(name, kTemporary)) RECON_RETURN_IF_ERROR(Delete(name));
  }
  return absl::OkStatus();
}

std::string HdfsStore::UrlOf(const std::string& name, const std::string& operation) const {
  return absl::StrCat(base_url_, directory_, name.empty() ? "" : "/", name, "?op=", operation,
                      options_.user.empty() ? "" : "&user.name=" + UrlEncode(options_.user));
}

absl::Status HdfsStore::ErrorOf(const HttpResponse& response, const std::string& what) const {
  return ParseHdfsError(response.status, response.body, what);
}

absl::StatusOr<HttpResponse> HdfsStore::AskOnce(const std::string& method, const std::string& name,
                                                const std::string& operation, bool redirect) {
  HttpRequest request;
  request.method = method;
  request.url = UrlOf(name, operation);
  request.fresh_connection = absl::StartsWith(operation, "RENAME");
  const std::string what = absl::StrCat(where_, name.empty() ? "" : "/", name, ": ", operation);
  absl::StatusOr<HttpResponse> response = http_.Send(request);
  if (!response.ok()) {
    return absl::Status(response.status().code(), absl::StrCat(what, ": ", response.status().message()));
  }
  if (response->ok() || (redirect && response->status == 307)) return response;
  return ErrorOf(*response, what);
}

absl::StatusOr<HttpResponse> HdfsStore::Ask(const std::string& method, const std::string& name,
                                            const std::string& operation, int* tries) {
  absl::StatusOr<HttpResponse> response = absl::UnknownError("");
  RECON_RETURN_IF_ERROR(RetryUnavailable(patience_, [&] {
    if (tries != nullptr) ++*tries;
    response = AskOnce(method, name, operation);
    return response.status();
  }));
  return response;
}

absl::StatusOr<HttpResponse> HdfsStore::TransferOnce(HttpRequest request, const std::string& name,
                                                     const std::string& operation) {
  RECON_ASSIGN_OR_RETURN(const HttpResponse sent_on,
                         AskOnce(request.method, name, operation, /*redirect=*/true));
  const std::string what = absl::StrCat(where_, "/", name, ": ", operation);
  if (sent_on.ok() && request.method == "GET") {  // A gateway has the data itself.
    if (sent_on.body.size() > request.out.size())
      return absl::FailedPreconditionError(what + ": the answer is longer than what was asked for");
    std::copy(sent_on.body.begin(), sent_on.body.end(), request.out.begin());
    return sent_on;
  }
  request.url = sent_on.header("location");
  if (sent_on.status != 307 || request.url.empty()) {
    return absl::FailedPreconditionError(what + ": the namenode does not say where the data is");
  }
  if (options_.tls && !absl::StartsWith(request.url, "https://")) {
    return absl::PermissionDeniedError(absl::StrCat(what, ": sent on from TLS to ", request.url));
  }
  request.headers = {"Content-Type: application/octet-stream", "Expect:"};
  request.fresh_connection = request.method == "POST";
  absl::StatusOr<HttpResponse> response = http_.Send(request);
  if (!response.ok()) {
    return absl::Status(response.status().code(),
                        absl::StrCat(what, ": sent on by the namenode: ", response.status().message()));
  }
  return response->ok() ? std::move(response) : ErrorOf(*response, what);
}

absl::StatusOr<HdfsFile> HdfsStore::StatusOf(const std::string& name) {
  RECON_ASSIGN_OR_RETURN(const HttpResponse response, Ask("GET", name, "GETFILESTATUS"));
  return ParseHdfsStatus(response.body);
}

absl::StatusOr<HdfsFile> HdfsStore::StatusOnce(const std::string& name) {
  RECON_ASSIGN_OR_RETURN(const HttpResponse response, AskOnce("GET", name, "GETFILESTATUS"));
  return ParseHdfsStatus(response.body);
}

absl::Status HdfsStore::MakeDirectoryOf(const std::string& name) {
  const size_t slash = name.rfind('/');
  if (slash == std::string::npos) return absl::OkStatus();
  return Ask("PUT", name.substr(0, slash), "MKDIRS").status();
}

absl::StatusOr<HdfsStore::Renamed> HdfsStore::Rename(const std::string& from, const std::string& to) {
  int tries = 0;
  const absl::StatusOr<HttpResponse> response =
      Ask("PUT", from, absl::StrCat("RENAME&destination=", directory_, "/", to), &tries);
  if (response.ok()) {
    RECON_ASSIGN_OR_RETURN(const bool renamed, ParseHdfsBoolean(response->body));
    if (renamed) return Renamed::kYes;
  } else if (!absl::IsNotFound(response.status()) && !absl::IsAlreadyExists(response.status())) {
    return response.status();
  }
  if (tries == 1) return Renamed::kNot;
  // The answer to an earlier try was lost, perhaps.
  const absl::Status left = StatusOf(from).status();
  if (absl::IsNotFound(left)) return Renamed::kPerhaps;
  if (!left.ok()) return left;
  return Renamed::kNot;
}

absl::StatusOr<std::unique_ptr<ObjectStore::Writer>> HdfsStore::Create(const std::string& name) {
  return std::unique_ptr<Writer>(std::make_unique<FileWriter>(this, name));
}

absl::Status HdfsStore::PutIfAbsent(const std::string& name, absl::string_view bytes) {
  FileWriter writer(this, name);
  RECON_RETURN_IF_ERROR(writer.Append(bytes));
  return writer.CloseIfAbsent(bytes);
}

absl::StatusOr<uint64_t> HdfsStore::Size(const std::string& name) {
  RECON_ASSIGN_OR_RETURN(const HdfsFile file, StatusOf(name));
  if (file.directory) return absl::NotFoundError(absl::StrCat(where_, "/", name, " is a directory"));
  return file.bytes;
}

absl::StatusOr<absl::Duration> HdfsStore::Age(const std::string& name) {
  RECON_ASSIGN_OR_RETURN(const HttpResponse response, Ask("GET", name, "GETFILESTATUS"));
  RECON_ASSIGN_OR_RETURN(const HdfsFile file, ParseHdfsStatus(response.body));
  if (file.written) return response.date().value_or(WallNow()) - *file.written;
  return absl::DataLossError(absl::StrCat(where_, "/", name, ": the namenode does not say how old it is"));
}

absl::Status HdfsStore::ReadInto(const std::string& name, uint64_t offset, uint64_t size, char* out) {
  if (size == 0) return Size(name).status();
  const std::string operation = absl::StrCat("OPEN&offset=", offset, "&length=", size);
  return RetryUnavailable(patience_, [&]() -> absl::Status {
    HttpRequest request;
    request.out = absl::MakeSpan(out, size);
    const absl::StatusOr<HttpResponse> response = TransferOnce(request, name, operation);
    if (response.ok() && response->body_bytes == size) return absl::OkStatus();
    if (!response.ok() && !absl::IsUnavailable(response.status())) return response.status();
    // Is there as much?
    RECON_ASSIGN_OR_RETURN(const HdfsFile file, StatusOnce(name));
    if (offset > file.bytes || size > file.bytes - offset) {
      return absl::DataLossError(absl::StrCat(where_, "/", name, " has ", file.bytes, " bytes, ", size,
                                              " were expected from byte ", offset));
    }
    if (!response.ok()) return response.status();
    return absl::UnavailableError(
        absl::StrCat(where_, "/", name, ": ", response->body_bytes, " of ", size, " bytes came"));
  });
}

absl::Status HdfsStore::ListBelow(const std::string& directory, int depth, std::vector<std::string>* names) {
  if (depth > kDepthMax) return absl::DataLossError(where_ + ": directories in directories without end");
  const absl::StatusOr<HttpResponse> response = Ask("GET", directory, "LISTSTATUS");
  if (absl::IsNotFound(response.status())) return absl::OkStatus();
  RECON_RETURN_IF_ERROR(response.status());
  RECON_ASSIGN_OR_RETURN(const std::vector<HdfsFile> files, ParseHdfsListing(response->body));
  for (const HdfsFile& file : files) {
    const std::string name = absl::StrCat(directory, directory.empty() ? "" : "/", file.name);
    if (file.directory) {
      RECON_RETURN_IF_ERROR(ListBelow(name, depth + 1, names));
    } else {
      names->push_back(name);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> HdfsStore::List(const std::string& prefix) {
  std::vector<std::string> names;
  const size_t slash = prefix.rfind('/');
  RECON_RETURN_IF_ERROR(ListBelow(slash == std::string::npos ? "" : prefix.substr(0, slash), 0, &names));
  names.erase(std::remove_if(names.begin(), names.end(),
                             [&](const std::string& name) {
                               return absl::EndsWith(name, kTemporary) || !absl::StartsWith(name, prefix);
                             }),
              names.end());
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status HdfsStore::Delete(const std::string& name) {
  const absl::Status deleted = Ask("DELETE", name, "DELETE").status();  // {"boolean": false}: not there.
  return absl::IsNotFound(deleted) ? absl::OkStatus() : deleted;
}

}  // namespace recon
