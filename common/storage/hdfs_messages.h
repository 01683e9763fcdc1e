#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace recon {

// The JSON of Hadoop's WebHDFS REST API (hadoop.apache.org, "WebHDFS REST API"), as far as a store needs it.
// Errors: FailedPrecondition if it is not what the API says: somebody else has answered.

struct HdfsFile {
  std::string name;  // Of a listing: without its directory.
  bool directory = false;
  uint64_t bytes = 0;
  std::optional<absl::Time> written;  // When it was closed, by the namenode's clock.
};
// Of GETFILESTATUS.
absl::StatusOr<HdfsFile> ParseHdfsStatus(absl::string_view json);
// Of LISTSTATUS.
absl::StatusOr<std::vector<HdfsFile>> ParseHdfsListing(absl::string_view json);
// Of MKDIRS, RENAME and DELETE.
absl::StatusOr<bool> ParseHdfsBoolean(absl::string_view json);
// What an answer that is not 2xx stands for; `text` begins the message. Unavailable for what may pass: a
// namenode on standby or starting, a file that another writer has not yet given back, any I/O error.
absl::Status ParseHdfsError(int http_status, absl::string_view json, const std::string& text);

}  // namespace recon
