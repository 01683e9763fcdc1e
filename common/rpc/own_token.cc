#include "common/rpc/own_token.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "common/base/host_port.h"
#include "common/base/private_file.h"
#include "common/rpc/caller.h"
#include "common/rpc/sender.h"

namespace recon {
namespace {

constexpr size_t kFileBytesMax = 512;

}  // namespace

std::string OwnTokenOf(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find(kOwnTokenFileMetadata);
  const std::string peer = PeerOf(context);
  if (found == metadata.end() || !IsLoopback(peer)) return "";
  const std::filesystem::path path(std::string(found->second.data(), found->second.size()));
  if (!path.is_absolute() || (path.filename() != kOwnTokenFile && path.filename() != kJobTokenFile)) {
    return "";
  }
  const absl::StatusOr<std::string> address = ReadOwnFile(path.parent_path() / "ADDRESS", kFileBytesMax);
  if (!address.ok()) return "";
  const auto port = PortOf(std::string(absl::StripAsciiWhitespace(*address)));
  const auto dialled = PortOf(peer);
  if (!port.ok() || !dialled.ok() || *port != *dialled) return "";
  const absl::StatusOr<std::string> text = ReadOwnFile(path, kFileBytesMax);
  if (!text.ok()) return "";
  const absl::string_view token = absl::StripAsciiWhitespace(*text);
  const auto fits = [](char sign) { return absl::ascii_isgraph(static_cast<unsigned char>(sign)); };
  if (!std::all_of(token.begin(), token.end(), fits)) return "";
  if (path.filename() == kOwnTokenFile && !absl::StartsWith(token, kOwnTokenPrefix)) return "";
  return std::string(token);
}

Introduction::Introduction(Caller caller)
    : looks_(caller.token.empty() || caller.token_is_ambient), caller_(std::move(caller)) {}

std::string Introduction::AddTo(grpc::ClientContext* context) const {
  if (looks_) context->AddMetadata(kLooksMetadata, "1");
  MutexLock lock(&mu_);
  caller_.AddTo(context);
  return caller_.token;
}

bool Introduction::FindsAnother(const std::string& shown, const grpc::Status& status,
                                const grpc::ClientContext& context) {
  if (!looks_ || status.error_code() != grpc::StatusCode::PERMISSION_DENIED) return false;
  const std::string found = OwnTokenOf(context);
  if (found.empty() || found == shown) return false;
  MutexLock lock(&mu_);
  caller_.token = found;
  return true;
}

}  // namespace recon
