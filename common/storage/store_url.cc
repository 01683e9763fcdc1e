#include "common/storage/store_url.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"
#include "common/storage/hdfs_store.h"
#include "common/storage/local_store.h"
#include "common/storage/patience.h"
#include "common/storage/s3_store.h"

namespace recon {
namespace {

// What WebHDFS listens on where nothing else is said.
constexpr int kWebHdfsPort = 9870;

bool All(absl::string_view text, absl::string_view others, bool upper) {
  return std::all_of(text.begin(), text.end(), [&](unsigned char c) {
    return absl::ascii_isdigit(c) || absl::ascii_islower(c) || (upper && absl::ascii_isupper(c)) ||
           absl::StrContains(others, static_cast<char>(c));
  });
}

// No part that is empty, "." or "..", nothing that would have to be escaped.
bool IsPath(absl::string_view path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  return std::all_of(parts.begin(), parts.end(), [](absl::string_view part) {
    return !part.empty() && part != "." && part != ".." && All(part, "._-", /*upper=*/true);
  });
}

bool IsPort(absl::string_view text) {
  int port = 0;
  return absl::SimpleAtoi(text, &port) && port > 0 && port < 65536;
}

absl::string_view WithoutSlashes(absl::string_view path) {
  while (absl::EndsWith(path, "/")) path.remove_suffix(1);
  while (absl::StartsWith(path, "/")) path.remove_prefix(1);
  return path;
}

absl::StatusOr<StoreUrl> ParseS3(const std::string& text, absl::string_view bucket,
                                 absl::string_view prefix) {
  if (bucket.size() < 3 || bucket.size() > 63 || !All(bucket, ".-", /*upper=*/false)) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, ": '", bucket, "' is no name of a bucket (s3://BUCKET/PREFIX)"));
  }
  if (!prefix.empty() && !IsPath(prefix)) {
    return absl::InvalidArgumentError(absl::StrCat(
        text, ": a prefix consists of letters, digits, '.', '_' and '-', with single '/' in between"));
  }
  return StoreUrl{StoreUrl::Scheme::kS3, std::string(bucket), std::string(prefix)};
}

absl::StatusOr<StoreUrl> ParseHdfs(const std::string& text, absl::string_view scheme, absl::string_view host,
                                   absl::string_view path) {
  const std::pair<absl::string_view, absl::string_view> name = absl::StrSplit(host, absl::MaxSplits(':', 1));
  const bool has_port = absl::StrContains(host, ":");
  if (name.first.empty() || !All(name.first, ".-", /*upper=*/true) || (has_port && !IsPort(name.second))) {
    return absl::InvalidArgumentError(absl::StrCat(text, ": '", host, "' is not HOST[:PORT]"));
  }
  if (!IsPath(path)) {
    return absl::InvalidArgumentError(absl::StrCat(text, ": a directory is needed (", scheme,
                                                   "://HOST/some/where), of letters, digits, '.', ",
                                                   "'_' and '-'"));
  }
  // The port of an hdfs:// address is that of Hadoop's own protocol.
  const bool port_is_rest = has_port && scheme != "hdfs";
  return StoreUrl{scheme == "swebhdfs" ? StoreUrl::Scheme::kSWebHdfs : StoreUrl::Scheme::kWebHdfs,
                  absl::StrCat(name.first, ":", port_is_rest ? name.second : absl::StrCat(kWebHdfsPort)),
                  absl::StrCat("/", path)};
}

}  // namespace

std::string StoreUrl::Absolute() const {
  switch (scheme) {
    case Scheme::kFile:
      return std::filesystem::absolute(path).string();
    case Scheme::kS3:
      return absl::StrCat("s3://", host, path.empty() ? "" : "/", path);
    case Scheme::kWebHdfs:
      return absl::StrCat("webhdfs://", host, path);
    case Scheme::kSWebHdfs:
      return absl::StrCat("swebhdfs://", host, path);
  }
  return "";
}

absl::StatusOr<StoreUrl> ParseStoreUrl(const std::string& text) {
  const size_t colon = text.find("://");
  if (colon == std::string::npos) {
    if (text.empty()) return absl::InvalidArgumentError("the name of a directory is empty");
    return StoreUrl{StoreUrl::Scheme::kFile, "", text};
  }
  const absl::string_view scheme = absl::string_view(text).substr(0, colon);
  const absl::string_view rest = absl::string_view(text).substr(colon + 3);
  const size_t slash = std::min(rest.find('/'), rest.size());
  const absl::string_view host = rest.substr(0, slash);
  if (scheme == "file") {
    if (host.empty() && rest.size() > 1) return StoreUrl{StoreUrl::Scheme::kFile, "", std::string(rest)};
    return absl::InvalidArgumentError(absl::StrCat(text, ": a file's address is file:///some/where"));
  }
  const absl::string_view path = WithoutSlashes(rest.substr(slash));
  if (scheme == "s3") return ParseS3(text, host, path);
  if (scheme == "hdfs" || scheme == "webhdfs" || scheme == "swebhdfs") {
    return ParseHdfs(text, scheme, host, path);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      text, ": there are directories, file://, s3://, hdfs://, webhdfs:// and swebhdfs://, but not ", scheme,
      "://"));
}

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenStore(const std::string& url, bool writer,
                                                       absl::Duration patience_max) {
  RECON_ASSIGN_OR_RETURN(const StoreUrl where, ParseStoreUrl(url));
  RECON_ASSIGN_OR_RETURN(absl::Duration patience, PatienceFromEnvironment());
  patience = std::min(patience, patience_max);
  switch (where.scheme) {
    case StoreUrl::Scheme::kFile:
      FileSystem::Local()->CapPatience(patience);
      return LocalStore::Open(where.path, writer);
    case StoreUrl::Scheme::kS3: {
      RECON_ASSIGN_OR_RETURN(S3Store::Options options, S3Store::OptionsFromEnvironment());
      options.patience = patience;
      return S3Store::Open(where.host, where.path, options, writer);
    }
    case StoreUrl::Scheme::kWebHdfs:
    case StoreUrl::Scheme::kSWebHdfs: {
      HdfsStore::Options options = HdfsStore::OptionsFromEnvironment();
      options.patience = patience;
      options.tls = where.scheme == StoreUrl::Scheme::kSWebHdfs;
      return HdfsStore::Open(where.host, where.path, options, writer);
    }
  }
  return absl::InternalError(url);
}

}  // namespace recon
