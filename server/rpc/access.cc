#include "server/rpc/access.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/host_port.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/private_file.h"
#include "common/base/status_macros.h"
#include "common/rpc/caller.h"
#include "common/rpc/sender.h"
#include "common/rpc/x509.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/server_context.h"

namespace recon {
namespace {

constexpr size_t kTokensBytesMax = 1 << 20;
constexpr char kJobTokenPrefix[] = "recon-job-";
// Lines of the audit log, for what was denied.
constexpr int kDenialsASecond = 5;

absl::StatusOr<OwnedOpenssl<X509>> CertificateOf(const grpc::CallbackServerContext& context) {
  const auto pem = context.auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  if (pem.empty()) return absl::NotFoundError("no certificate");
  RECON_ASSIGN_OR_RETURN(auto certificates, ReadCertificates({pem[0].data(), pem[0].size()}));
  return std::move(certificates.front());
}

CertificateNames NamesOf(const X509* certificate) {
  return {CommonNameOf(certificate), UnitsOf(certificate), UrisOf(certificate)};
}

std::string Shown(const CertificateNames& names) {
  return absl::StrCat("certificate CN=", names.common_name,
                      names.units.empty() ? "" : ", OU=", absl::StrJoin(names.units, ", OU="),
                      names.uris.empty() ? "" : ", ", absl::StrJoin(names.uris, ", "));
}

// A job's token for its user alone.
absl::Status KeepJobToken(const std::string& path, const std::string& token) {
  unlink(path.c_str());  // Who has opened another one's file reads nothing new.
  absl::Status kept = WriteOwnFile(path, token + "\n", 0600);
  if (kept.ok()) kept = ReadSecretFile(path, kTokensBytesMax).status();
  if (kept.ok()) return kept;
  unlink(path.c_str());
  return absl::FailedPreconditionError(
      absl::StrCat("the job's token cannot be kept: ", kept.message(),
                   "; give one by RECON_TOKEN, or --tokens, or let everybody in (--open)"));
}

// The one of an earlier start. NotFound if there is none.
absl::StatusOr<std::string> ReadJobToken(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSecretFile(path, kTokensBytesMax);
  if (text.ok()) text = ReadOwnFile(path, kTokensBytesMax);
  if (absl::IsNotFound(text.status())) return text.status();
  const absl::string_view token = text.ok() ? absl::StripAsciiWhitespace(*text) : "";
  const absl::Status fits = text.ok() ? CheckToken(token) : text.status();
  if (fits.ok()) return std::string(token);
  return absl::FailedPreconditionError(absl::StrCat(
      path, ": ", fits.message(), "; without the file another token is drawn, which workers need then"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Access>> Access::Open(const Options& options) {
  std::unique_ptr<Access> access(new Access(options));
  access->MakeOwnToken();
  RECON_RETURN_IF_ERROR(access->MakeJobToken());
  {
    MutexLock lock(&access->mu_);
    RECON_RETURN_IF_ERROR(access->LookAtTokens());
  }
  if (!options.crl_file.empty()) {
    RECON_ASSIGN_OR_RETURN(access->revocations_, Revocations::Open(options.crl_file, options.ca_file));
  }
  RECON_ASSIGN_OR_RETURN(access->audit_, AuditLog::Open(options.directory + "/AUDIT"));
  return access;
}

Access::~Access() {
  if (audit_ != nullptr) Tick(absl::InfiniteFuture());
}

void Access::MakeOwnToken() {
  const std::string path = absl::StrCat(options_.directory, "/", kOwnTokenFile);
  // A new one each time: whoever listened on the head's port while it was away may have been shown the old
  // one.
  own_token_ = kOwnTokenPrefix;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&own_token_, absl::Hex(RandomNonZero(), absl::kZeroPad16));
  unlink(path.c_str());
  absl::Status kept = WriteOwnFile(path, own_token_ + "\n", 0600);
  kept.Update(ReadSecretFile(path, kTokensBytesMax).status());
  if (kept.ok()) return;
  // A full disk, or a file system where all files are everybody's: training needs no operator.
  LogWarn("{}: operators need a certificate or --tokens: {}", path, kept.message());
  unlink(path.c_str());
}

absl::Status Access::MakeJobToken() {
  if (options_.tls || !options_.tokens_file.empty() || options_.open) return absl::OkStatus();
  const std::string path = absl::StrCat(options_.directory, "/", kJobTokenFile);
  job_token_ = options_.job_token;
  if (!job_token_.empty()) {
    const absl::Status fits = CheckToken(job_token_);
    if (!fits.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the job's token (--token-file or RECON_TOKEN): ", fits.message()));
    }
    // Who was given it needs no file; processes of this machine are spared a flag by it.
    absl::Status kept = KeepJobToken(path, job_token_);
    if (!kept.ok()) LogWarn("{}: processes of this machine need the job's token: {}", path, kept.message());
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> before = ReadJobToken(path);
  if (before.ok()) {
    job_token_ = *std::move(before);
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(before.status())) return before.status();
  job_token_ = kJobTokenPrefix;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&job_token_, absl::Hex(RandomNonZero(), absl::kZeroPad16));
  return KeepJobToken(path, job_token_);
}

absl::Status Access::LookAtTokens() {
  const std::string& path = options_.tokens_file;
  if (path.empty()) return absl::OkStatus();
  const absl::StatusOr<bool> changed = tokens_file_.Changed(Now());
  if (!changed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--tokens ", changed.status().message()));
  }
  if (!*changed) return looked_;
  const absl::StatusOr<std::string> text = ReadSecretFile(path, kTokensBytesMax);
  if (!text.ok()) return absl::InvalidArgumentError(absl::StrCat("--tokens ", text.status().message()));
  absl::StatusOr<TokenTable> table = TokenTable::Parse(*text);
  if (!table.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--tokens ", path, ": ", table.status().message()));
  }
  if (tokens_file_.was_read()) LogInfo("--tokens {} has been read again", path);
  tokens_ = *std::move(table);
  tokens_file_.NoteRead();
  return absl::OkStatus();
}

Access::Caller Access::HolderOf(const X509* certificate, absl::string_view chain) const {
  const CertificateNames names = NamesOf(certificate);
  const bool revoked =
      revocations_ != nullptr && (revocations_->Has(certificate) || revocations_->HasAnyOf(chain));
  if (revoked) return {RoleSet(), absl::StrCat("the revoked ", Shown(names)), revoked};
  return {RolesOfCertificate(names, options_.rules), Shown(names), revoked};
}

absl::Status Access::CheckObserver(absl::string_view certificate) {
  const auto* begin = reinterpret_cast<const unsigned char*>(certificate.data());
  const OwnedOpenssl<X509> read(d2i_X509(nullptr, &begin, static_cast<long>(certificate.size())));  // NOLINT
  if (read == nullptr) return absl::PermissionDeniedError("a certificate of the job's CA is needed");
  const Caller holder = HolderOf(read.get(), "");
  if (holder.roles.Has(Role::kObserver)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the job is shown to observers: ", holder.shown,
                                                  " has the role ", holder.roles.Describe()));
}

Access::Caller Access::CallerOf(const grpc::CallbackServerContext& context) {
  Caller caller;
  std::vector<std::string> shown;
  if (options_.tls) {
    if (const auto certificate = CertificateOf(context); certificate.ok()) {
      const auto chain = context.auth_context()->FindPropertyValues(GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME);
      caller = HolderOf(certificate->get(),
                        chain.empty() ? "" : absl::string_view(chain[0].data(), chain[0].size()));
      if (caller.revoked) return caller;
      shown.push_back(caller.shown);
    }
  } else if (!wants_secret()) {
    caller.roles = {Role::kWorker, Role::kServer};
  }
  const std::string token = TokenOf(context);
  if (!token.empty()) {
    TokenTable own;
    own.Add(Role::kOperator, own_token_);
    if (!job_token_.empty()) {
      own.Add(Role::kWorker, job_token_);
      own.Add(Role::kServer, job_token_);
    }
    RoleSet by_token = own.RolesOf(token);
    MutexLock lock(&mu_);
    // The tokens that were good stay, if the file is not.
    const absl::Status looked = LookAtTokens();
    if (!looked.ok() && looked != looked_) LogWarn("{}", looked.message());
    looked_ = looked;
    by_token.Add(tokens_.RolesOf(token));
    shown.push_back(by_token.empty() ? "a token that nobody has" : "token");
    caller.roles.Add(by_token);
  }
  caller.shown = shown.empty() ? "nothing" : absl::StrJoin(shown, " and ");
  return caller;
}

absl::Status Access::Check(grpc::CallbackServerContext* context, Role need, absl::string_view call) {
  const Caller caller = CallerOf(*context);
  const std::string peer = PeerOf(*context);
  if (caller.roles.Has(need)) {
    NoteFound(peer, caller.roles);
    if (need == Role::kOperator) NoteMember(*context);
    const auto connection = ConnectionOf(peer);
    if (connection == nullptr) return absl::OkStatus();
    connection->NoteUnderstood();
    // What an observer asks is short, and the answer may be long.
    if (need != Role::kObserver || connection->member() || connection->calls() < kObserverCallsMax) {
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(
        absl::StrCat(call, ": ", kObserverCallsMax,
                     " calls of this connection are not answered yet, or it has not read the answers"));
  }
  const absl::Status denied = absl::PermissionDeniedError(
      absl::StrCat(call, " is for the role ", RoleName(need), ": the caller at ", peer, " has shown ",
                   caller.shown, " and has the role ", caller.roles.Describe(), Way(need)));
  const bool told = IsLoopback(peer) && context->client_metadata().count(kLooksMetadata) != 0;
  // A token that nobody has is no way of looking.
  const bool looks = told && (!caller.roles.empty() || TokenOf(*context).empty());
  AuditLog::Entry entry = {WallNow(),
                           std::string(call),
                           peer,
                           caller.shown,
                           caller.roles.Describe(),
                           "",
                           absl::StrCat("denied: needs ", RoleName(need))};
  if (looks) {
    NoteLooking(need, std::move(entry));
  } else {
    NoteDenied(std::move(entry));
  }
  TellWhere(context, need);
  return denied;
}

std::string Access::Way(Role need) const {
  if (options_.tls) return "; give a certificate of that role, or a token (--token-file)";
  if (job_token_.empty() || need == Role::kOperator) {
    return "; give a token of that role (--token-file, RECON_TOKEN_FILE or RECON_TOKEN)";
  }
  return absl::StrCat("; give the job's token (--token-file, RECON_TOKEN_FILE or RECON_TOKEN): it is in ",
                      kJobTokenFile,
                      " in the head's --data, where processes of the head's user on its "
                      "machine find it by themselves");
}

void Access::TellWhere(grpc::CallbackServerContext* context, Role need) const {
  if (!IsLoopback(PeerOf(*context))) return;
  const bool of_job = need != Role::kOperator && !job_token_.empty();
  // With the operator's one may observe, too.
  if (!of_job && need != Role::kOperator && need != Role::kObserver) return;
  context->AddTrailingMetadata(kOwnTokenFileMetadata,
                               absl::StrCat(options_.directory, "/", of_job ? kJobTokenFile : kOwnTokenFile));
}

absl::Status Access::CheckName(const grpc::CallbackServerContext& context, absl::string_view name) {
  if (!options_.names_by_certificate) return absl::OkStatus();
  const auto certificate = CertificateOf(context);
  const std::string own = certificate.ok() ? CommonNameOf(certificate->get()) : "";
  absl::string_view rest = name;
  if (!own.empty() && absl::ConsumePrefix(&rest, own) && (rest.empty() || rest[0] == '-')) {
    return absl::OkStatus();
  }
  NoteDenied({WallNow(), "Register", PeerOf(context), absl::StrCat("certificate CN=", own), "",
              std::string(name), "denied: another's name"});
  return absl::PermissionDeniedError(absl::StrCat(
      "a worker called '", name, "' with a certificate of CN=", own,
      ": names go by certificates here (--names-by-certificate): --name ", own, ", or ", own, "-<anything>"));
}

void Access::NoteDenied(AuditLog::Entry entry) {
  {
    MutexLock lock(&mu_);
    const absl::Time now = Now();
    if (now - denials_since_ > absl::Seconds(1)) {
      denials_since_ = now;
      denials_ = 0;
    }
    if (++denials_ > kDenialsASecond) {
      ++denials_unsaid_;
      return;
    }
    if (denials_unsaid_ > 0) absl::StrAppend(&entry.detail, denials_unsaid_, " others were denied before");
    denials_unsaid_ = 0;
  }
  audit_->Note(std::move(entry));
}

void Access::NoteLooking(Role need, AuditLog::Entry denied) {
  {
    MutexLock lock(&mu_);
    if (looking_.size() < limits::kDeniedWhoLookMax) {
      looking_.push_back({need, Now() + kLooksFor, std::move(denied)});
      return;
    }
  }
  NoteDenied(std::move(denied));
}

void Access::NoteFound(const std::string& peer, RoleSet roles) {
  MutexLock lock(&mu_);
  if (looking_.empty()) return;
  looking_.erase(
      std::remove_if(looking_.begin(), looking_.end(),
                     [&](const Looking& one) { return one.denied.from == peer && roles.Has(one.need); }),
      looking_.end());
}

void Access::Tick(absl::Time now) {
  std::vector<AuditLog::Entry> denied;
  {
    MutexLock lock(&mu_);
    for (; !looking_.empty() && looking_.front().until <= now; looking_.pop_front()) {
      denied.push_back(std::move(looking_.front().denied));
    }
  }
  for (AuditLog::Entry& entry : denied) NoteDenied(std::move(entry));
}

std::shared_ptr<Connection> Access::ConnectionOf(const std::string& peer) const {
  return options_.connections == nullptr ? nullptr : options_.connections->Find(peer);
}

void Access::NoteMember(const grpc::CallbackServerContext& context) {
  if (const auto connection = ConnectionOf(PeerOf(context)); connection != nullptr) connection->NoteMember();
}

void Access::Note(const grpc::CallbackServerContext& context, absl::string_view call,
                  absl::string_view detail, const absl::Status& result) {
  const Caller caller = CallerOf(context);
  audit_->Note({WallNow(), std::string(call), PeerOf(context), caller.shown, caller.roles.Describe(),
                std::string(detail), result.ok() ? "ok" : std::string(result.message())});
}

}  // namespace recon
