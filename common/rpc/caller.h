#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/rpc/certificates.h"
#include "common/transport/worker_secret.h"
#include "grpcpp/client_context.h"

namespace recon {

// What a call says of who makes it. The texts are secrets: they are shown nowhere.
struct Caller {
  std::string secret;  // WorkerSecret's bytes; empty: the caller is no worker of the job.
  std::string token;   // Of a role; empty: none.

  static Caller Worker(const WorkerSecret& secret) { return {std::string(secret.bytes()), ""}; }

  void AddTo(grpc::ClientContext* context) const;
};

// The call's metadata that carries them.
inline constexpr char kSecretMetadata[] = "recon-worker-bin";
inline constexpr char kTokenMetadata[] = "recon-token";
// In the answer to an operator's call of this machine that was denied: the path of the token that the head
// has made for itself. It begins so.
inline constexpr char kOwnTokenFileMetadata[] = "recon-operator-token-file-bin";
inline constexpr char kOwnTokenFile[] = "OPERATOR_TOKEN";
inline constexpr char kOwnTokenPrefix[] = "recon-operator-";

// What --token-file names: one token. InvalidArgument, which names the flag, if it cannot be read or others
// can read it.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);
// Who is no worker, and shows the token of the flags if there is one.
absl::StatusOr<Caller> CallerFor(const TlsFlags& flags);

}  // namespace recon
