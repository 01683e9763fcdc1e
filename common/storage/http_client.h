#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"

namespace recon {

struct HttpRequest {
  std::string method = "GET";
  std::string url;                   // Percent-encoded.
  std::vector<std::string> headers;  // "Name: value".
  absl::string_view body;            // Of PUT and POST.
  // Where the body of a 2xx answer goes; empty: to HttpResponse::body.
  absl::Span<char> out;
  // The answer may be so long in coming; zero: the client's stall_timeout.
  absl::Duration stall_timeout;
  // libcurl sends a request again by itself where a kept connection turns out to be dead: not this one, whose
  // second try would be answered otherwise than the first.
  bool fresh_connection = false;
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // Names in lower case.
  std::string body;
  uint64_t body_bytes = 0;  // Written to `out`, or the size of `body`.

  bool ok() const { return status / 100 == 2; }
  // What the server's clock said, and when the answer's object was written: "Date" and "Last-Modified".
  // Nothing where the server does not say.
  std::optional<absl::Time> date() const;
  std::optional<absl::Time> last_modified() const;
  // Empty if there is none.
  const std::string& header(const std::string& lower_case_name) const;
};

// HTTP/1.1 by libcurl, with connections kept for the next request. Redirects are answers like others.
//
// Threads: thread-safe; every thread that is in a call has a connection of its own.
class HttpClient {
 public:
  struct Options {
    absl::Duration connect_timeout = absl::Seconds(5);
    // A transfer that moves less than 1 KiB/s for so long has failed.
    absl::Duration stall_timeout = absl::Seconds(30);
    std::string ca_file;  // PEM; empty: the system's.
    // Requests are signed with AWS Signature Version 4, if not empty: "aws:amz:REGION:s3".
    std::string sign;
    std::string access_key, secret_key;
  };

  explicit HttpClient(Options options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // One exchange, whatever the answer's status. Unavailable if there is no whole answer; FailedPrecondition
  // if a 2xx answer is longer than `out`, or any other than kHttpBodyBytesMax.
  absl::StatusOr<HttpResponse> Send(const HttpRequest& request);

 private:
  class Handle;

  const Options options_;
  Mutex mu_;
  std::vector<void*> idle_ ABSL_GUARDED_BY(mu_);  // CURL*.
};

// That a request may be answered better a little later: 408, 429 and most 5xx.
bool MayPass(int http_status);

// The status that stands for an answer which is not 2xx; `text` is the message.
absl::Status StatusOfHttp(int http_status, const std::string& text);

// Percent-encoded: all but letters, digits and -._~.
std::string UrlEncode(absl::string_view text);

}  // namespace recon
