#include "common/storage/s3_store.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/lane_pool.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/storage/s3_messages.h"

namespace recon {
namespace {

// Putting an object together of its parts may take a server minutes.
constexpr absl::Duration kCompleteTimeout = absl::Minutes(5);
constexpr char kRequestId[] = "x-amz-request-id";
// Being uploaded while the next is filled.
constexpr int kPartsInFlight = 2;

std::string Environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const char* value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "";
}

std::string Sha256(absl::string_view bytes) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
  return ToHex({reinterpret_cast<const char*>(digest), sizeof digest});
}

HttpClient::Options ClientOptions(const S3Store::Options& options) {
  HttpClient::Options client;
  client.ca_file = options.ca_file;
  client.sign = absl::StrCat("aws:amz:", options.region, ":s3");
  client.access_key = options.access_key;
  client.secret_key = options.secret_key;
  return client;
}

S3Store::Options WithDefaults(S3Store::Options options) {
  if (options.region.empty()) options.region = "us-east-1";
  return options;
}

}  // namespace

// One object: in one request if it is small, otherwise in parts, some of them under way while the next is
// filled.
class S3Store::PartWriter : public ObjectStore::Writer {
 public:
  PartWriter(S3Store* store, std::string name)
      : store_(store), name_(std::move(name)), url_key_(store->prefix_ + name_) {}

  ~PartWriter() override {
    lanes_.reset();
    if (upload_.empty() || closed_) return;
    HttpRequest request;
    request.method = "DELETE";
    request.url = store_->UrlOf(url_key_, "uploadId=" + UrlEncode(upload_));
    const absl::Status ended = store_->Call(request, name_).status();
    if (!ended.ok()) LogWarn("an upload that was given up stays: {}", ended.message());
  }

  absl::Status Append(absl::string_view bytes) override {
    RECON_CHECK(!closed_);
    bytes_ += bytes.size();
    while (!bytes.empty()) {
      // Some servers want all parts of one size.
      const size_t taken = std::min<size_t>(bytes.size(), limits::kStorePartBytes - part_.size());
      if (part_.capacity() < limits::kStorePartBytes && part_.size() + taken > part_.capacity()) {
        part_.reserve(std::min<size_t>(limits::kStorePartBytes, 2 * (part_.size() + taken)));
      }
      part_.append(bytes.data(), taken);
      bytes.remove_prefix(taken);
      if (part_.size() == limits::kStorePartBytes && !bytes.empty()) RECON_RETURN_IF_ERROR(SendPart());
    }
    return absl::OkStatus();
  }

  absl::Status Close() override {
    if (upload_.empty()) {
      HttpRequest request;
      request.method = "PUT";
      request.url = store_->UrlOf(url_key_);
      request.body = part_;
      RECON_RETURN_IF_ERROR(store_->Call(request, name_).status());
      closed_ = true;
      return absl::OkStatus();
    }
    RECON_RETURN_IF_ERROR(SendPart());
    lanes_.reset();  // Returns when all is sent.
    {
      MutexLock lock(&mu_);
      RECON_RETURN_IF_ERROR(failure_);
    }
    RECON_RETURN_IF_ERROR(Complete());
    closed_ = true;
    return absl::OkStatus();
  }

 private:
  absl::Status SendPart() {
    if (upload_.empty()) {
      HttpRequest request;
      request.method = "POST";
      request.url = store_->UrlOf(url_key_, "uploads=");
      RECON_ASSIGN_OR_RETURN(const HttpResponse begun, store_->Call(request, name_));
      RECON_ASSIGN_OR_RETURN(upload_, ParseS3UploadId(begun.body));
      lanes_.emplace("upload", kPartsInFlight);
    }
    const size_t number = parts_++;
    if (number >= limits::kStorePartsMax) {
      return absl::ResourceExhaustedError(absl::StrCat(store_->where_, "/", name_, " would have more than ",
                                                       limits::kStorePartsMax, " parts"));
    }
    {
      MutexLock lock(&mu_);
      mu_.Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return in_flight_ < kPartsInFlight; });
      RECON_RETURN_IF_ERROR(failure_);
      etags_.resize(parts_);
      ++in_flight_;
    }
    lanes_->Post(static_cast<uint32_t>(number),
                 [this, number, part = std::exchange(part_, {})] { Upload(number, part); });
    return absl::OkStatus();
  }

  // On a lane.
  void Upload(size_t number, const std::string& part) {
    HttpRequest request;
    request.method = "PUT";
    request.url =
        store_->UrlOf(url_key_, absl::StrCat("partNumber=", number + 1, "&uploadId=", UrlEncode(upload_)));
    request.body = part;
    const absl::StatusOr<HttpResponse> sent = store_->Call(request, name_);
    MutexLock lock(&mu_);
    RECON_CHECK_GT(in_flight_, 0);
    --in_flight_;
    RECON_CHECK_LT(number, etags_.size(), "a part was sent that has no place");
    if (sent.ok()) {
      etags_[number] = sent->header("etag");
    } else {
      failure_.Update(sent.status());
    }
  }

  absl::Status Complete() {
    std::string body;
    {
      MutexLock lock(&mu_);
      RECON_CHECK_EQ(in_flight_, 0, "an upload is completed while a part is under way");
      RECON_CHECK_EQ(etags_.size(), parts_);
      body = S3CompleteUpload(etags_);
    }
    HttpRequest request;
    request.method = "POST";
    request.url = store_->UrlOf(url_key_, "uploadId=" + UrlEncode(upload_));
    request.headers = {"Content-Type: application/xml"};
    request.body = body;
    request.stall_timeout = kCompleteTimeout;
    request.fresh_connection = true;
    int tries = 0;
    const absl::StatusOr<HttpResponse> completed = store_->Call(request, name_, &tries);
    if (completed.ok() && IsS3Completion(completed->body)) return absl::OkStatus();
    if (!completed.ok() && (!absl::IsNotFound(completed.status()) || tries == 1)) return completed.status();
    // The answer to an earlier try was lost, perhaps, or came from somebody on the way.
    RECON_ASSIGN_OR_RETURN(const uint64_t size, store_->Size(name_));
    if (size == bytes_) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat(store_->where_, "/", name_, " has ", size, " bytes, ", bytes_, " were written"));
  }

  S3Store* const store_;
  const std::string name_, url_key_;
  uint64_t bytes_ = 0;
  std::string part_;
  std::string upload_;  // The id; empty while all fits into one request.
  size_t parts_ = 0;
  bool closed_ = false;

  Mutex mu_;
  int in_flight_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::string> etags_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);

  std::optional<LanePool> lanes_;
};

absl::StatusOr<S3Store::Options> S3Store::OptionsFromEnvironment() {
  Options options;
  options.access_key = Environment({"AWS_ACCESS_KEY_ID"});
  options.secret_key = Environment({"AWS_SECRET_ACCESS_KEY"});
  if (options.access_key.empty() || options.secret_key.empty()) {
    return absl::FailedPreconditionError(
        "s3:// needs the environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
  }
  options.session_token = Environment({"AWS_SESSION_TOKEN"});
  options.region = Environment({"AWS_REGION", "AWS_DEFAULT_REGION"});
  options.endpoint = Environment({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  options.ca_file = Environment({"AWS_CA_BUNDLE"});
  return options;
}

S3Store::S3Store(const std::string& bucket, const std::string& prefix, const Options& options)
    : where_(absl::StrCat("s3://", bucket, prefix.empty() ? "" : "/", prefix)),
      prefix_(prefix.empty() ? "" : prefix + "/"),
      options_(options),
      patience_(options.patience),
      http_(ClientOptions(options)) {
  std::string endpoint = options.endpoint;
  // Certificates are for one name below Amazon's: a bucket's name with a dot is part of the path.
  const bool in_path = !endpoint.empty() || absl::StrContains(bucket, ".");
  if (endpoint.empty()) {
    endpoint = absl::StrCat("https://", in_path ? "" : bucket + ".", "s3.", options.region, ".amazonaws.com");
  }
  while (absl::EndsWith(endpoint, "/")) endpoint.pop_back();
  bucket_url_ = absl::StrCat(endpoint, "/", in_path ? bucket + "/" : "");
}

absl::StatusOr<std::unique_ptr<S3Store>> S3Store::Open(const std::string& bucket, const std::string& prefix,
                                                       const Options& options, bool writer) {
  std::unique_ptr<S3Store> store(new S3Store(bucket, prefix, WithDefaults(options)));
  HttpRequest request;  // Whether it is there, and ours to read.
  request.url = store->UrlOf("", absl::StrCat("list-type=2&max-keys=1&prefix=", UrlEncode(store->prefix_)));
  RECON_ASSIGN_OR_RETURN(const HttpResponse listed, store->Call(request, ""));
  store->numbers_answers_ = !listed.header(kRequestId).empty();
  if (writer) RECON_RETURN_IF_ERROR(store->CheckConditionalPut());
  return store;
}

// A server that takes no notice of the condition would let two jobs publish one snapshot.
absl::Status S3Store::CheckConditionalPut() {
  const std::string name = absl::StrCat("probe/", absl::Hex(RandomNonZero(), absl::kZeroPad16));
  RECON_RETURN_IF_ERROR(PutIfAbsent(name, "first"));
  const absl::Status second = PutIfAbsent(name, "second");
  RECON_RETURN_IF_ERROR(Delete(name));
  if (absl::IsAlreadyExists(second)) return absl::OkStatus();
  if (!second.ok()) return second;
  return absl::UnimplementedError(absl::StrCat(
      where_, ": this server takes no notice of If-None-Match; snapshots need a store that does"));
}

absl::Status S3Store::RemoveLeftovers(const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) RECON_RETURN_IF_ERROR(EndUploads(prefix_ + prefix));
  return absl::OkStatus();
}

absl::Status S3Store::EndUploads(const std::string& key_prefix) {
  S3Uploads found;
  do {
    HttpRequest request;
    std::string query;  // In the order in which it is signed.
    if (!found.next_key.empty()) absl::StrAppend(&query, "key-marker=", UrlEncode(found.next_key), "&");
    absl::StrAppend(&query, "prefix=", UrlEncode(key_prefix));
    if (!found.next_id.empty()) absl::StrAppend(&query, "&upload-id-marker=", UrlEncode(found.next_id));
    request.url = UrlOf("", query + "&uploads=");
    RECON_ASSIGN_OR_RETURN(const HttpResponse response, Call(request, ""));
    RECON_ASSIGN_OR_RETURN(found, ParseS3Uploads(response.body));
    for (const S3Uploads::Upload& upload : found.uploads) {
      if (!absl::StartsWith(upload.key, key_prefix)) continue;
      HttpRequest end;
      end.method = "DELETE";
      end.url = UrlOf(upload.key, "uploadId=" + UrlEncode(upload.id));
      const absl::Status ended = Call(end, upload.key).status();
      if (!ended.ok() && !absl::IsNotFound(ended)) return ended;
    }
  } while (!found.next_key.empty());
  return absl::OkStatus();
}

std::string S3Store::UrlOf(const std::string& key, const std::string& query) const {
  return absl::StrCat(bucket_url_, key, query.empty() ? "" : "?", query);
}

absl::StatusOr<HttpResponse> S3Store::CallOnce(const HttpRequest& request, const std::string& name) {
  absl::StatusOr<HttpResponse> response = http_.Send(request);
  const std::string what = absl::StrCat(where_, name.empty() ? "" : "/", name, ": ");
  if (!response.ok()) {
    return absl::Status(response.status().code(), absl::StrCat(what, response.status().message()));
  }
  // The last request of an upload, a POST, may fail after its status was sent.
  const std::string error = response->ok() && request.method != "POST" ? "" : ParseS3Error(response->body);
  if (response->ok() && error.empty()) return response;
  std::string text = absl::StrCat(what, request.method, ": ", response->status, " ", error);
  if (response->ok()) return absl::UnavailableError(text);
  if (response->status == 412) return absl::AlreadyExistsError(text);
  if (response->status / 100 == 3) {
    absl::StrAppend(&text, " (the bucket is elsewhere: AWS_REGION, AWS_ENDPOINT_URL)");
  }
  const auto is = [&](const char* code) { return absl::StartsWith(error, absl::StrCat(code, ":")); };
  if (is("ExpiredToken") || is("InvalidToken") || is("InvalidAccessKeyId"))
    return absl::PermissionDeniedError(text);
  if (is("NoSuchBucket")) return absl::FailedPreconditionError(text);
  // The answer to HEAD has no body. That there is no such object is believed of an S3 server, not of a
  // gateway.
  const bool others_404 = response->status == 404 && error.empty() &&
                          (numbers_answers_ || request.method != "HEAD") &&
                          response->header(kRequestId).empty();
  const bool again = response->status == 409 || is("RequestTimeout") || others_404;
  return again ? absl::UnavailableError(text) : StatusOfHttp(response->status, text);
}

absl::StatusOr<HttpResponse> S3Store::Call(HttpRequest request, const std::string& name, int* tries) {
  request.headers.push_back("x-amz-content-sha256: " + Sha256(request.body));
  if (!options_.session_token.empty()) {
    request.headers.push_back("x-amz-security-token: " + options_.session_token);
  }
  const bool typed = std::any_of(request.headers.begin(), request.headers.end(),
                                 [](const std::string& h) { return absl::StartsWith(h, "Content-Type:"); });
  if (!typed && (request.method == "PUT" || request.method == "POST")) {
    request.headers.push_back("Content-Type: application/octet-stream");
  }
  absl::StatusOr<HttpResponse> response = absl::UnknownError("");
  RECON_RETURN_IF_ERROR(RetryUnavailable(patience_, [&] {
    if (tries != nullptr) ++*tries;
    response = CallOnce(request, name);
    return response.status();
  }));
  return response;
}

absl::StatusOr<std::unique_ptr<ObjectStore::Writer>> S3Store::Create(const std::string& name) {
  return std::unique_ptr<Writer>(std::make_unique<PartWriter>(this, name));
}

absl::Status S3Store::PutIfAbsent(const std::string& name, absl::string_view bytes) {
  HttpRequest request;
  request.method = "PUT";
  request.url = UrlOf(prefix_ + name);
  request.headers = {"If-None-Match: *"};
  request.fresh_connection = true;
  request.body = bytes;
  int tries = 0;
  const absl::Status put = Call(request, name, &tries).status();
  if (!absl::IsAlreadyExists(put) || tries == 1) return put;
  // It may be ours, of a try whose answer was lost.
  const absl::StatusOr<uint64_t> size = Size(name);
  if (!size.ok() || *size != bytes.size()) return put;
  RECON_ASSIGN_OR_RETURN(const std::string there, Read(name, 0, *size));
  return there == bytes ? absl::OkStatus() : put;
}

absl::StatusOr<uint64_t> S3Store::Size(const std::string& name) {
  HttpRequest request;
  request.method = "HEAD";
  request.url = UrlOf(prefix_ + name);
  RECON_ASSIGN_OR_RETURN(const HttpResponse response, Call(request, name));
  uint64_t size = 0;
  if (absl::SimpleAtoi(response.header("content-length"), &size)) return size;
  return absl::DataLossError(absl::StrCat(where_, "/", name, ": the store does not say how long it is"));
}

absl::StatusOr<absl::Duration> S3Store::Age(const std::string& name) {
  HttpRequest request;
  request.method = "HEAD";
  request.url = UrlOf(prefix_ + name);
  RECON_ASSIGN_OR_RETURN(const HttpResponse response, Call(request, name));
  const std::optional<absl::Time> written = response.last_modified();
  if (written) return response.date().value_or(WallNow()) - *written;
  return absl::DataLossError(absl::StrCat(where_, "/", name, ": the store does not say how old it is"));
}

absl::Status S3Store::ReadInto(const std::string& name, uint64_t offset, uint64_t size, char* out) {
  if (size == 0) return Size(name).status();
  HttpRequest request;
  request.url = UrlOf(prefix_ + name);
  request.headers = {absl::StrCat("Range: bytes=", offset, "-", offset + size - 1)};
  request.out = absl::MakeSpan(out, size);
  const absl::StatusOr<HttpResponse> response = Call(request, name);
  if (response.ok() && response->body_bytes == size && (response->status == 206 || offset == 0)) {
    return absl::OkStatus();
  }
  if (!response.ok() && !absl::IsOutOfRange(response.status())) return response.status();
  RECON_ASSIGN_OR_RETURN(const uint64_t have, Size(name));
  if (offset <= have && size <= have - offset) {
    return absl::UnavailableError(absl::StrCat(where_, "/", name, ": not what was asked for came, ", size,
                                               " bytes from byte ", offset));
  }
  return absl::DataLossError(absl::StrCat(where_, "/", name, ": ", size, " bytes were expected from byte ",
                                          offset, ", ",
                                          response.ok() ? absl::StrCat(response->body_bytes, " came")
                                                        : std::string(response.status().message())));
}

absl::StatusOr<std::vector<std::string>> S3Store::List(const std::string& prefix) {
  std::vector<std::string> names;
  S3Listing page;
  do {
    HttpRequest request;
    std::string query;  // In the order in which it is signed.
    if (!page.next_token.empty()) {
      absl::StrAppend(&query, "continuation-token=", UrlEncode(page.next_token), "&");
    }
    request.url = UrlOf("", absl::StrCat(query, "list-type=2&prefix=", UrlEncode(prefix_ + prefix)));
    RECON_ASSIGN_OR_RETURN(const HttpResponse response, Call(request, ""));
    RECON_ASSIGN_OR_RETURN(page, ParseS3Listing(response.body));
    for (const std::string& key : page.keys) {
      if (absl::StartsWith(key, prefix_ + prefix)) names.push_back(key.substr(prefix_.size()));
    }
  } while (!page.next_token.empty());
  std::sort(names.begin(), names.end());
  return names;
}

absl::Status S3Store::Delete(const std::string& name) {
  HttpRequest request;
  request.method = "DELETE";
  request.url = UrlOf(prefix_ + name);
  const absl::Status deleted = Call(request, name).status();
  return absl::IsNotFound(deleted) ? absl::OkStatus() : deleted;
}

}  // namespace recon
