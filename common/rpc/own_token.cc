#include "common/rpc/own_token.h"

#include <filesystem>

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
  if (!path.is_absolute() || path.filename() != kOwnTokenFile) return "";
  const absl::StatusOr<std::string> address = ReadOwnFile(path.parent_path() / "ADDRESS", kFileBytesMax);
  if (!address.ok()) return "";
  const auto port = PortOf(std::string(absl::StripAsciiWhitespace(*address)));
  const auto dialled = PortOf(peer);
  if (!port.ok() || !dialled.ok() || *port != *dialled) return "";
  const absl::StatusOr<std::string> token = ReadOwnFile(path, kFileBytesMax);
  if (!token.ok() || !absl::StartsWith(*token, kOwnTokenPrefix)) return "";
  return std::string(absl::StripAsciiWhitespace(*token));
}

}  // namespace recon
