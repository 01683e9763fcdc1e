#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/rpc/connections.h"
#include "grpcpp/support/server_callback.h"
#include "server/access/audit_log.h"
#include "server/access/roles.h"

namespace recon {

// Which calls of a head are answered, by the role of the caller. A role comes from the caller's certificate,
// by rules, and from the token that it shows. Without TLS and without a file of tokens everybody who reaches
// the port may do what a worker, a server and an observer may; an operator shows the token that the head has
// made for itself when it started, in a file that only the head's user reads.
//
// Threads: thread-safe.
class Access {
 public:
  struct Options {
    bool tls = false;
    std::vector<RoleRule> rules;  // Of certificates; see RolesOfCertificate().
    std::string tokens_file;      // Empty: none. It is read again when it changes.
    std::string operator_file;    // Gets the head's own token.
    std::string audit_file;
    // Told whose other ends have been understood, and which are members; null: none. It outlives this.
    Connections* connections = nullptr;
  };
  // InvalidArgument for a file of tokens that cannot be read or is wrong; FailedPrecondition for an audit
  // file that is a link or no regular file.
  static absl::StatusOr<std::unique_ptr<Access>> Open(const Options& options);

  // OK if the caller has the role. Else PermissionDenied, which names the role and the way to it; it is in
  // the audit log then. Where the head's own token would do, and the caller is a process of this machine, it
  // is told where that is.
  absl::Status Check(grpc::CallbackServerContext* context, Role need, absl::string_view call);
  // What a peer (PeerOf) calls over; null if that is not known.
  std::shared_ptr<Connection> ConnectionOf(const std::string& peer) const;
  // The caller has shown to be a worker of the job.
  void NoteMember(const grpc::CallbackServerContext& context);
  // What a call has done that changes the job, or who has come: a line of the audit log.
  void Note(const grpc::CallbackServerContext& context, absl::string_view call, absl::string_view detail,
            const absl::Status& result);

 private:
  struct Caller {
    RoleSet roles;
    std::string shown;  // As the audit log has it.
  };
  explicit Access(Options options) : options_(std::move(options)) {}
  void MakeOwnToken();
  // A line of the audit log; of a flood only some, and how many there were.
  void NoteDenied(AuditLog::Entry entry);
  // Reads the tokens if the file is another one than at the last look.
  absl::Status LookAtTokens() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Caller CallerOf(const grpc::CallbackServerContext& context);

  const Options options_;
  std::string own_token_;
  std::unique_ptr<AuditLog> audit_;

  Mutex mu_;
  TokenTable tokens_ ABSL_GUARDED_BY(mu_);
  std::string read_of_ ABSL_GUARDED_BY(mu_);  // What tells one state of the file from another.
  absl::Status looked_ ABSL_GUARDED_BY(mu_);  // What came of the last look.
  absl::Time look_at_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  // Denials of this second, and how many lines of them were left out.
  absl::Time denials_since_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int denials_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t denials_unsaid_ ABSL_GUARDED_BY(mu_) = 0;
};
}  // namespace recon
