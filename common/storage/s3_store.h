#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/storage/http_client.h"
#include "common/storage/object_store.h"
#include "common/storage/patience.h"

namespace recon {

// Objects of a bucket of Amazon S3, or of a server with the same REST API (Ceph, MinIO, Swift...).
//
// The server must list what it has at once after it is there, and must honour "If-None-Match: *": a writer
// tries that when it opens the store. Large objects are uploads of several parts; a part that fails is sent
// again alone. What a crash leaves are uploads that nobody sees.
//
// Threads and errors: as ObjectStore's. Blocks on the network. A writer uploads on two threads of its own and
// keeps three parts of limits::kStorePartBytes in memory.
class S3Store : public ObjectStore {
 public:
  struct Options {
    std::string endpoint;  // "https://host[:port]"; empty: Amazon's of the region.
    std::string region;    // Empty: "us-east-1".
    std::string access_key, secret_key;
    std::string session_token;  // Of temporary keys; may be empty.
    std::string ca_file;        // PEM; empty: the system's.
    absl::Duration patience = limits::kStorePatience;
  };
  // From the environment variables of AWS's tools: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
  // AWS_SESSION_TOKEN, AWS_REGION or AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL,
  // AWS_CA_BUNDLE. FailedPrecondition if there are no keys.
  static absl::StatusOr<Options> OptionsFromEnvironment();

  // `prefix`: "" or "some/where", whose names the store's are. PermissionDenied, NotFound if there is no such
  // bucket, Unavailable; Unimplemented (writer) if If-None-Match is not honoured.
  static absl::StatusOr<std::unique_ptr<S3Store>> Open(const std::string& bucket, const std::string& prefix,
                                                       const Options& options, bool writer);

  absl::StatusOr<std::unique_ptr<Writer>> Create(const std::string& name) override;
  absl::Status PutIfAbsent(const std::string& name, absl::string_view bytes) override;
  absl::StatusOr<uint64_t> Size(const std::string& name) override;
  absl::StatusOr<absl::Duration> Age(const std::string& name) override;
  absl::Status ReadInto(const std::string& name, uint64_t offset, uint64_t size, char* out) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& prefix) override;
  absl::Status Delete(const std::string& name) override;
  absl::Status RemoveLeftovers(const std::vector<std::string>& prefixes) override;
  void CapPatience(absl::Duration most) override { patience_.Cap(most); }
  std::string Describe() const override { return where_; }

 private:
  class PartWriter;

  S3Store(const std::string& bucket, const std::string& prefix, const Options& options);
  std::string UrlOf(const std::string& key, const std::string& query = "") const;
  // Signs, sends and, while that may help, sends again. An answer that is not 2xx is an error.
  absl::StatusOr<HttpResponse> Call(HttpRequest request, const std::string& name, int* tries = nullptr);
  absl::StatusOr<HttpResponse> CallOnce(const HttpRequest& request, const std::string& name);
  absl::Status CheckConditionalPut();
  absl::Status EndUploads(const std::string& key_prefix);

  const std::string where_;   // "s3://bucket/prefix".
  const std::string prefix_;  // "" or "some/where/".
  std::string bucket_url_;    // Ends in '/'.
  const Options options_;
  bool numbers_answers_ = false;  // The server gives each a number (x-amz-request-id). Set by Open().
  Patience patience_;
  HttpClient http_;
};

}  // namespace recon
