#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/base/watched_file.h"
#include "common/rpc/connections.h"
#include "common/rpc/revocations.h"
#include "grpcpp/support/server_callback.h"
#include "server/access/audit_log.h"
#include "server/access/roles.h"

namespace recon {

// Which calls of a head are answered, by the role of the caller. A role comes from the caller's certificate,
// by rules, and from the token that it shows. Without TLS and without a file of tokens the job has a token of
// its own, in a file that only the head's user reads: who shows it may do what a worker, a server and an
// observer may, and nobody else may do anything, unless the head is open. An operator shows the token that
// the head has made for itself when it started, in another such file.
//
// Threads: thread-safe.
class Access {
 public:
  // Of a connection whose other end is no member of the job, open at the same time.
  static constexpr uint64_t kObserverCallsMax = 16;
  // A client looks into two small files, and calls again.
  static constexpr absl::Duration kLooksFor = absl::Seconds(5);
  struct Options {
    bool tls = false;
    std::vector<RoleRule> rules;  // Of certificates; see RolesOfCertificate().
    std::string crl_file;         // Of revoked certificates of `ca_file`; empty: none.
    std::string ca_file;
    // A worker is called by its certificate's common name.
    bool names_by_certificate = false;
    std::string tokens_file;  // Empty: none. It is read again when it changes.
    std::string directory;    // Gets the files with the head's own token and the job's, and AUDIT.
    // Whoever reaches the port is a worker, a server and an observer.
    bool open = false;
    // What the job's token is to be; empty: the one of an earlier start, or one that is drawn. Of no use with
    // TLS, with a file of tokens and of an open head.
    std::string job_token = "";  // NOLINT(readability-redundant-string-init)
    // Told whose other ends have been understood, and which are members; null: none. It outlives this.
    Connections* connections = nullptr;
  };
  // InvalidArgument for a file of tokens or of revoked certificates that cannot be read or is wrong, and for
  // a job's token that can be none; FailedPrecondition for an audit file that is a link or no regular file,
  // and for a job's token that cannot be kept to its user.
  static absl::StatusOr<std::unique_ptr<Access>> Open(const Options& options);
  // Whoever still looks for a token has its line in the audit log then.
  ~Access();

  // OK if the caller has the role; ResourceExhausted if it observes, is no member of the job, and its
  // connection has kObserverCallsMax calls open. Else PermissionDenied, which names the role and the way to
  // it; it is in the audit log then. A process of this machine is told where the head keeps a token that
  // would do; if it says that it looks for one, and comes back with it within kLooksFor, it has no line in
  // the audit log for that.
  absl::Status Check(grpc::CallbackServerContext* context, Role need, absl::string_view call);
  // OK if the holder of this certificate (DER), who calls otherwise than by gRPC, may observe. Else
  // PermissionDenied, which says what it is; it is not in the audit log.
  absl::Status CheckObserver(absl::string_view certificate);
  // Writes the audit lines of callers who were denied and have looked for a token for long enough. It is to
  // be called several times a second.
  void Tick(absl::Time now);
  // Whether a worker of that name may come: if names go by certificates, it is the common name of the
  // caller's, or that, a dash and more. PermissionDenied, which says the name.
  absl::Status CheckName(const grpc::CallbackServerContext& context, absl::string_view name);
  // Whether nobody is a member without having shown something.
  bool wants_secret() const { return options_.tls || !options_.tokens_file.empty() || !options_.open; }
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
    bool revoked = false;
  };
  // Who was denied, and looks for a token.
  struct Looking {
    Role need;
    absl::Time until;
    AuditLog::Entry denied;  // Unless it comes back by then.
  };
  explicit Access(Options options) : options_(std::move(options)), tokens_file_(options_.tokens_file) {}
  void MakeOwnToken();
  // The job's token, where it has one.
  absl::Status MakeJobToken();
  // What a caller who was denied can do, as the end of a sentence.
  std::string Way(Role need) const;
  // Tells a process of this machine where a token for `need` is.
  void TellWhere(grpc::CallbackServerContext* context, Role need) const;
  // A line of the audit log; of a flood only some, and how many there were.
  void NoteDenied(AuditLog::Entry entry);
  void NoteLooking(Role need, AuditLog::Entry denied);
  // The process at `peer` has come back with these roles.
  void NoteFound(const std::string& peer, RoleSet roles);
  // Reads the tokens if the file is another one than at the last look.
  absl::Status LookAtTokens() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Caller CallerOf(const grpc::CallbackServerContext& context);
  // `chain`: what was shown beside it, in PEM.
  Caller HolderOf(const X509* certificate, absl::string_view chain) const;

  const Options options_;
  std::string own_token_;
  std::string job_token_;  // Empty: the job has none.
  std::unique_ptr<AuditLog> audit_;
  Revocations* revocations_ = nullptr;  // Null: none.

  Mutex mu_;
  TokenTable tokens_ ABSL_GUARDED_BY(mu_);
  WatchedFile tokens_file_ ABSL_GUARDED_BY(mu_);
  absl::Status looked_ ABSL_GUARDED_BY(mu_);          // What came of the last look.
  std::deque<Looking> looking_ ABSL_GUARDED_BY(mu_);  // The oldest first.
  // Denials of this second, and how many lines of them were left out.
  absl::Time denials_since_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  int denials_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t denials_unsaid_ ABSL_GUARDED_BY(mu_) = 0;
};
}  // namespace recon
