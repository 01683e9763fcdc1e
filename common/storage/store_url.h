#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/storage/object_store.h"

namespace recon {

// Where objects are: a directory ("/some/where", "some/where", "file:///some/where"), "s3://BUCKET[/PREFIX]",
// "webhdfs://HOST[:PORT]/PATH", "swebhdfs://..." (with TLS) or "hdfs://HOST[:PORT]/PATH".
struct StoreUrl {
  enum class Scheme { kFile, kS3, kWebHdfs, kSWebHdfs };
  Scheme scheme = Scheme::kFile;
  std::string host;  // Bucket, or "host:port".
  std::string path;  // Directory; prefix without '/' at its ends; "/absolute/path".

  bool local() const { return scheme == Scheme::kFile; }
  // As it can be given again, from any directory.
  std::string Absolute() const;
};

// InvalidArgument says what is wrong with `text`.
absl::StatusOr<StoreUrl> ParseStoreUrl(const std::string& text);

// Opens it as LocalStore, S3Store or HdfsStore do, with what their environment variables say, and
// RECON_STORE_PATIENCE ("30s"): how long a store that does not answer is asked again. `writer`: as the owner
// of all below. No more patience than `patience_max`.
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenStore(
    const std::string& url, bool writer, absl::Duration patience_max = absl::InfiniteDuration());

}  // namespace recon
