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
  // The token is the environment's, for whatever a process does: where it is denied, another one may be
  // looked for (Introduction).
  bool token_is_ambient = false;

  static Caller Worker(const WorkerSecret& secret) { return {std::string(secret.bytes()), ""}; }

  void AddTo(grpc::ClientContext* context) const;
};

// The call's metadata that carries them.
inline constexpr char kSecretMetadata[] = "recon-worker-bin";
inline constexpr char kTokenMetadata[] = "recon-token";
// A caller sends this if it looks for a token on this machine when it is denied (Introduction).
inline constexpr char kLooksMetadata[] = "recon-looks-for-token";
// In the answer to a call of this machine that was denied: the path of a token that the head keeps for
// processes of its user. It is one of these two names; the operator's token begins with the prefix.
inline constexpr char kOwnTokenFileMetadata[] = "recon-operator-token-file-bin";
inline constexpr char kOwnTokenFile[] = "OPERATOR_TOKEN";
inline constexpr char kOwnTokenPrefix[] = "recon-operator-";
inline constexpr char kJobTokenFile[] = "JOB_TOKEN";

// What --token-file names: one token. InvalidArgument, which names the flag, if it cannot be read or others
// can read it.
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);
// Who is no worker, and shows the token of the flags, else that of the environment (RECON_TOKEN), if there is
// one. InvalidArgument, which names where it comes from, for what can be no token.
absl::StatusOr<Caller> CallerFor(const TlsFlags& flags);

}  // namespace recon
