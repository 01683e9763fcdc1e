#include "common/rpc/status_codes.h"

#include <string>

#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"

namespace recon {

namespace {

// Of "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:7070: Failed to connect to
// remote host: Connection refused" what somebody who waits wants to know.
std::string WithoutGrpcsWords(const std::string& message) {
  absl::string_view text = message;
  if (!absl::ConsumePrefix(&text, "failed to connect to all addresses; last error: ")) return message;
  const size_t code = text.find(": ");
  if (code != absl::string_view::npos) text.remove_prefix(code + 2);
  if (!absl::ConsumePrefix(&text, "ipv4:")) absl::ConsumePrefix(&text, "ipv6:");
  return absl::StrReplaceAll(text, {{"Failed to connect to remote host: ", ""}, {"%5B", "["}, {"%5D", "]"}});
}

}  // namespace

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      WithoutGrpcsWords(status.error_message()));
}

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace recon
