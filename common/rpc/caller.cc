#include "common/rpc/caller.h"

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/private_file.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr size_t kTokenFileBytesMax = 512;
// The token itself, for where files are no way: a container's environment, say.
constexpr char kTokenVariable[] = "RECON_TOKEN";

// What may be a token, as far as metadata carries it.
bool IsToken(absl::string_view token) {
  const auto fits = [](char sign) { return absl::ascii_isgraph(static_cast<unsigned char>(sign)); };
  return !token.empty() && token.size() <= kTokenFileBytesMax &&
         std::all_of(token.begin(), token.end(), fits);
}

}  // namespace

void Caller::AddTo(grpc::ClientContext* context) const {
  if (!secret.empty()) context->AddMetadata(kSecretMetadata, secret);
  if (!token.empty()) context->AddMetadata(kTokenMetadata, token);
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSecretFile(path, kTokenFileBytesMax);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("--token-file: ", text.status().message()));
  const absl::string_view token = absl::StripAsciiWhitespace(*text);
  if (!IsToken(token)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file ", path, ": expected one token and nothing else"));
  }
  return std::string(token);
}

absl::StatusOr<Caller> CallerFor(const TlsFlags& flags) {
  Caller caller;
  if (!flags.token_file.empty()) {
    RECON_ASSIGN_OR_RETURN(caller.token, ReadTokenFile(flags.token_file));
    return caller;
  }
  const char* const variable = std::getenv(kTokenVariable);
  if (variable == nullptr || *variable == '\0') return caller;
  const absl::string_view token = absl::StripAsciiWhitespace(variable);
  if (!IsToken(token)) {
    return absl::InvalidArgumentError(absl::StrCat(
        kTokenVariable, " is no token: expected at most ", kTokenFileBytesMax,
        " characters without spaces (what it has, ", token.size(), " bytes, is not shown here)"));
  }
  caller.token = std::string(token);
  caller.token_is_ambient = true;
  return caller;
}

}  // namespace recon
