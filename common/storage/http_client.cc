#include "common/storage/http_client.h"

#include <curl/curl.h>

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/backoff.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr long kSlowBytesPerSecond = 1024;  // NOLINT(google-runtime-int): libcurl's type.
constexpr size_t kHeadersMax = 200;

// What an answer is received into.
struct Receiver {
  CURL* curl = nullptr;
  absl::Span<char> out;
  HttpResponse response;
  bool too_long = false;

  long Status() const {  // NOLINT(google-runtime-int)
    long status = 0;     // NOLINT(google-runtime-int)
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    return status;
  }
};

size_t OnBody(char* data, size_t one, size_t size, void* user) {
  auto* receiver = static_cast<Receiver*>(user);
  size *= one;
  HttpResponse& response = receiver->response;
  const bool direct = !receiver->out.empty() && receiver->Status() / 100 == 2;
  const uint64_t room = direct ? receiver->out.size() : limits::kHttpBodyBytesMax;
  if (response.body_bytes > room || size > room - response.body_bytes) {
    receiver->too_long = true;
    return 0;
  }
  if (direct) {
    std::memcpy(receiver->out.data() + response.body_bytes, data, size);
  } else {
    response.body.append(data, size);
  }
  response.body_bytes += size;
  return size;
}

size_t OnHeader(char* data, size_t one, size_t size, void* user) {
  auto* receiver = static_cast<Receiver*>(user);
  const absl::string_view line(data, size * one);
  const size_t colon = line.find(':');
  if (absl::StartsWith(line, "HTTP/")) {
    receiver->response.headers.clear();  // After "100 Continue" comes another.
  } else if (colon != absl::string_view::npos && receiver->response.headers.size() < kHeadersMax) {
    receiver->response.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return size * one;
}

// "Sun, 06 Nov 1994 08:49:37 GMT", as RFC 9110 has it.
std::optional<absl::Time> ParseHttpDate(const std::string& text) {
  absl::Time time;
  std::string error;
  if (!absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", text, &time, &error)) return std::nullopt;
  return time;
}

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, FreeList>;

HeaderList MakeHeaders(const std::vector<std::string>& headers) {
  HeaderList list;
  for (const std::string& header : headers) {
    curl_slist* longer = curl_slist_append(list.get(), header.c_str());
    if (longer == nullptr) throw std::bad_alloc();
    (void)list.release();
    list.reset(longer);
  }
  return list;
}

}  // namespace

std::optional<absl::Time> HttpResponse::date() const { return ParseHttpDate(header("date")); }

std::optional<absl::Time> HttpResponse::last_modified() const {
  return ParseHttpDate(header("last-modified"));
}

const std::string& HttpResponse::header(const std::string& lower_case_name) const {
  static const std::string none;
  const auto found = headers.find(lower_case_name);
  return found == headers.end() ? none : found->second;
}

// One of the client's handles, for one exchange.
class HttpClient::Handle {
 public:
  explicit Handle(HttpClient* client) : client_(client) {
    MutexLock lock(&client_->mu_);
    if (!client_->idle_.empty()) {
      curl_ = client_->idle_.back();
      client_->idle_.pop_back();
    } else {
      curl_ = curl_easy_init();
      if (curl_ == nullptr) throw std::bad_alloc();
    }
  }
  ~Handle() {
    RECON_CHECK(curl_ != nullptr);
    curl_easy_reset(curl_);  // Keeps its connections, and nothing that points here.
    MutexLock lock(&client_->mu_);
    client_->idle_.push_back(curl_);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  CURL* get() { return curl_; }

 private:
  HttpClient* const client_;
  CURL* curl_ = nullptr;
};

HttpClient::HttpClient(Options options) : options_(std::move(options)) {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  (void)initialized;
}

HttpClient::~HttpClient() {
  MutexLock lock(&mu_);
  for (void* curl : idle_) curl_easy_cleanup(curl);
}

absl::StatusOr<HttpResponse> HttpClient::Send(const HttpRequest& request) {
  if (!options_.ca_file.empty()) {
    if (const absl::Status file = CheckRegularFile(options_.ca_file); !file.ok()) {
      return absl::PermissionDeniedError(absl::StrCat("file of CAs: ", file.message()));
    }
  }
  Handle handle(this);
  CURL* curl = handle.get();
  Receiver receiver;
  receiver.curl = curl;
  receiver.out = request.out;
  const HeaderList headers = MakeHeaders(request.headers);
  char error[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, error);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));  // NOLINT
  curl_easy_setopt(curl, CURLOPT_URL, request.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, OnBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &receiver);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, OnHeader);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &receiver);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS,
                   static_cast<long>(absl::ToInt64Milliseconds(options_.connect_timeout)));  // NOLINT
  // Large bodies are announced first; servers that do not answer that get them all the same.
  curl_easy_setopt(curl, CURLOPT_EXPECT_100_TIMEOUT_MS, 250L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, kSlowBytesPerSecond);
  const absl::Duration stall =
      request.stall_timeout > absl::ZeroDuration() ? request.stall_timeout : options_.stall_timeout;
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(absl::ToInt64Seconds(stall)));  // NOLINT
  if (!options_.ca_file.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, options_.ca_file.c_str());
  if (!options_.sign.empty()) {
    curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, options_.sign.c_str());
    curl_easy_setopt(curl, CURLOPT_USERNAME, options_.access_key.c_str());
    curl_easy_setopt(curl, CURLOPT_PASSWORD, options_.secret_key.c_str());
  }
  if (request.fresh_connection) curl_easy_setopt(curl, CURLOPT_FRESH_CONNECT, 1L);
  if (request.method == "HEAD") {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
  }
  if (request.method != "HEAD") curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());

  const CURLcode code = curl_easy_perform(curl);
  if (receiver.too_long) {
    return absl::FailedPreconditionError(
        absl::StrCat(request.method, " ", request.url, ": the answer is longer than what was asked for"));
  }
  if (code != CURLE_OK) {
    const char* reason = error[0] != '\0' ? error : curl_easy_strerror(code);
    const std::string text = absl::StrCat(request.method, " ", request.url, ": ", reason);
    switch (code) {
      case CURLE_URL_MALFORMAT:
      case CURLE_UNSUPPORTED_PROTOCOL:
        return absl::InvalidArgumentError(text);
      case CURLE_PEER_FAILED_VERIFICATION:
      case CURLE_SSL_CACERT_BADFILE:
        return absl::PermissionDeniedError(text);
      default:
        return absl::UnavailableError(text);
    }
  }
  receiver.response.status = static_cast<int>(receiver.Status());
  return std::move(receiver.response);
}

bool MayPass(int http_status) {
  switch (http_status) {
    case 408:
    case 429:
      return true;
    case 501:  // Not implemented.
    case 505:  // This version of HTTP is not.
    case 507:  // Full.
      return false;
    default:
      return http_status / 100 == 5;
  }
}

absl::Status StatusOfHttp(int http_status, const std::string& text) {
  if (MayPass(http_status)) return absl::UnavailableError(text);
  switch (http_status) {
    case 401:
    case 403:
      return absl::PermissionDeniedError(text);
    case 404:
      return absl::NotFoundError(text);
    case 416:
      return absl::OutOfRangeError(text);
    case 507:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::FailedPreconditionError(text);
  }
}

std::string UrlEncode(absl::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("-._~", c)) {
      encoded += c;
    } else {
      absl::StrAppend(
          &encoded, "%",
          absl::AsciiStrToUpper(absl::StrCat(absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2))));
    }
  }
  return encoded;
}

}  // namespace recon
