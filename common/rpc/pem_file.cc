#include "common/rpc/pem_file.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/regular_file.h"

namespace recon {
namespace {

// A file of all the CAs that a browser knows has a fourth of it.
constexpr size_t kPemBytesMax = 1 << 20;

}  // namespace

absl::StatusOr<std::string> ReadPemFile(const std::string& flag, const std::string& path) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, ": ", what));
  };
  const absl::StatusOr<std::string> read = ReadRegularFile(path, kPemBytesMax);
  if (!read.ok()) return absl::InvalidArgumentError(absl::StrCat(flag, " ", read.status().message()));
  if (read->empty()) return wrong("is empty");
  if (!absl::StrContains(*read, "-----BEGIN ")) return wrong("is not a PEM file");
  return read;
}

}  // namespace recon
