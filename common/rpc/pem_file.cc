#include "common/rpc/pem_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

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
  if (const absl::Status regular = CheckRegularFile(path); absl::IsInvalidArgument(regular)) {
    return absl::InvalidArgumentError(absl::StrCat(flag, " ", regular.message()));
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return wrong(absl::StrCat("cannot be read: ", strerror(errno)));
  std::string text(kPemBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (in.bad()) return wrong(absl::StrCat("cannot be read: ", strerror(errno)));
  if (text.empty()) return wrong("is empty, or no file");
  if (text.size() > kPemBytesMax) return wrong(absl::StrCat("has more than ", kPemBytesMax, " bytes"));
  if (!absl::StrContains(text, "-----BEGIN ")) return wrong("is not a PEM file");
  return text;
}

}  // namespace recon
