#include <cstdint>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "common/storage/hdfs_messages.h"
#include "common/storage/s3_messages.h"

// Any bytes as the answers of an S3 server and of WebHDFS.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto listing = recon::ParseS3Listing(text);
  if (listing.ok()) {
    for (const std::string& key : listing->keys) {
      if (key.empty()) std::abort();
    }
  }
  recon::ParseS3Uploads(text).IgnoreError();
  recon::ParseS3UploadId(text).IgnoreError();
  (void)recon::ParseS3Error(text);
  recon::ParseHdfsStatus(text).IgnoreError();
  recon::ParseHdfsBoolean(text).IgnoreError();
  const auto files = recon::ParseHdfsListing(text);
  if (files.ok()) {
    for (const recon::HdfsFile& file : *files) {
      if (file.name.empty() || absl::string_view(file.name).find('/') != absl::string_view::npos)
        std::abort();
    }
  }
  if (recon::ParseHdfsError(403, text, "x").ok()) std::abort();
  return 0;
}
