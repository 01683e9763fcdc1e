#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recon {

// The XML of Amazon S3's REST API (docs.aws.amazon.com/AmazonS3/latest/API), as far as a store needs it.
// Errors: FailedPrecondition if it is not what the API says: somebody else has answered. Half a listing must
// never look like a whole one: what is not listed is taken for absent.

// Of ListObjectsV2.
struct S3Listing {
  std::vector<std::string> keys;
  std::string next_token;  // Empty: nothing more.
};
absl::StatusOr<S3Listing> ParseS3Listing(absl::string_view xml);

// Of ListMultipartUploads.
struct S3Uploads {
  struct Upload {
    std::string key, id;
  };
  std::vector<Upload> uploads;
  std::string next_key, next_id;  // Empty: nothing more.
};
absl::StatusOr<S3Uploads> ParseS3Uploads(absl::string_view xml);

// Of CreateMultipartUpload.
absl::StatusOr<std::string> ParseS3UploadId(absl::string_view xml);

// Whether it is the answer to CompleteMultipartUpload when that has worked.
bool IsS3Completion(absl::string_view xml);

// "Code: message"; empty if it is no error.
std::string ParseS3Error(absl::string_view xml);

// The body of CompleteMultipartUpload.
std::string S3CompleteUpload(const std::vector<std::string>& etags);

}  // namespace recon
