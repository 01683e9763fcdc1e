#include "common/rpc/caller.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/private_file.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr size_t kTokenFileBytesMax = 512;

}  // namespace

void Caller::AddTo(grpc::ClientContext* context) const {
  if (!secret.empty()) context->AddMetadata(kSecretMetadata, secret);
  if (!token.empty()) context->AddMetadata(kTokenMetadata, token);
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSecretFile(path, kTokenFileBytesMax);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("--token-file: ", text.status().message()));
  const absl::string_view token = absl::StripAsciiWhitespace(*text);
  const auto fits = [](char sign) { return absl::ascii_isgraph(static_cast<unsigned char>(sign)); };
  if (token.empty() || !std::all_of(token.begin(), token.end(), fits)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file ", path, ": expected one token and nothing else"));
  }
  return std::string(token);
}

absl::StatusOr<Caller> CallerFor(const TlsFlags& flags) {
  Caller caller;
  if (!flags.token_file.empty()) {
    RECON_ASSIGN_OR_RETURN(caller.token, ReadTokenFile(flags.token_file));
  }
  return caller;
}

}  // namespace recon
