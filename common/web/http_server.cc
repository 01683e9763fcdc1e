#include "common/web/http_server.h"

#include <fcntl.h>
#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/host_port.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/rpc/address_rates.h"
#include "common/rpc/pem_file.h"
#include "common/rpc/x509.h"

namespace recon {
namespace {

constexpr int kBacklog = 1024;
// Connections beyond those that count: they are cut already, and the library has not closed them yet.
constexpr unsigned kGoingMax = 16;
constexpr size_t kHeadersMax = 64;
// Between two looks at those that have taken too long.
constexpr absl::Duration kOverdueLook = absl::Milliseconds(100);

// A listening socket at `host`. `about`, flag and address, begins errors.
absl::StatusOr<OwnedFd> ListenAt(const std::string& host, const std::string& port, const std::string& about) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0)
    return absl::InvalidArgumentError(absl::StrCat(about, ": ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  OwnedFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd.get() < 0 || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(fd.get(), kBacklog) != 0) {
    return absl::UnavailableError(absl::StrCat(about, ": ", std::strerror(errno)));
  }
  return fd;
}

// So that addresses of any family and port 0 are one case. All addresses are those of both families, where
// the machine has both.
absl::StatusOr<OwnedFd> Listen(const std::string& flag, const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  const std::string about = absl::StrCat(flag, " ", address);
  if (IsWildcard(address)) {
    auto both = ListenAt("::", port, about);
    if (both.ok()) return both;
    host = "0.0.0.0";
  }
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  return ListenAt(host, port, about);
}

std::string WithPort(const std::string& address, int fd) {
  sockaddr_storage bound = {};
  socklen_t size = sizeof bound;
  char port[NI_MAXSERV] = "0";
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0) {
    getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, port, sizeof port, NI_NUMERICSERV);
  }
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

bool SameFile(int one, int other) {
  struct stat first {};
  struct stat second {};
  return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_dev == second.st_dev &&
         first.st_ino == second.st_ino;
}

// The certificate that the other end has shown, if our CA has made it, and not revoked.
std::string CertificateOf(MHD_Connection* connection, Revocations* revocations) {
  const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
  if (info == nullptr || info->tls_session == nullptr) return "";
  auto* session = static_cast<gnutls_session_t>(info->tls_session);
  unsigned shown = 0;
  const gnutls_datum_t* chain = gnutls_certificate_get_peers(session, &shown);
  if (chain == nullptr || shown == 0) return "";
  unsigned problems = 0;
  const bool verified = gnutls_certificate_verify_peers2(session, &problems) == GNUTLS_E_SUCCESS;
  if (!verified || problems != 0) return "";
  if (revocations != nullptr) {
    const unsigned char* der = chain[0].data;
    const OwnedOpenssl<X509> own(d2i_X509(nullptr, &der, chain[0].size));
    if (own == nullptr || revocations->Has(own.get())) return "";
  }
  return {reinterpret_cast<const char*>(chain[0].data), chain[0].size};
}

MHD_Result Collect(void* into, MHD_ValueKind kind, const char* name, const char* value) {
  auto* map = static_cast<std::map<std::string, std::string>*>(into);
  if (map->size() >= kHeadersMax) return MHD_NO;
  const std::string key = kind == MHD_HEADER_KIND ? absl::AsciiStrToLower(name) : std::string(name);
  map->emplace(key, value == nullptr ? "" : value);
  return MHD_YES;
}

MHD_Result Send(MHD_Connection* connection, const WebResponse& response) {
  using Body = std::shared_ptr<const std::string>;
  static const Body kEmpty = std::make_shared<const std::string>();
  const Body& body = response.body == nullptr ? kEmpty : response.body;
  auto* kept = new Body(body);  // Until the last byte is sent.
  MHD_Response* out = MHD_create_response_from_buffer_with_free_callback_cls(
      body->size(), const_cast<char*>(body->data()), [](void* held) { delete static_cast<Body*>(held); },
      kept);
  if (out == nullptr) {
    delete kept;
    return MHD_NO;
  }
  MHD_add_response_header(out, "Content-Type", response.content_type.c_str());
  for (const auto& [name, value] : response.headers)
    MHD_add_response_header(out, name.c_str(), value.c_str());
  const MHD_Result queued = MHD_queue_response(connection, static_cast<unsigned>(response.status), out);
  MHD_destroy_response(out);
  return queued;
}

}  // namespace

// Of one request, between the calls of its handler.
struct HttpServer::Connection {
  size_t body_bytes = 0;
};

namespace {

int DescriptorOf(MHD_Connection* connection) {
  return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
}

}  // namespace

// What the library calls.
struct HttpCallbacks {
  static MHD_Result OnRequest(void* self, MHD_Connection* connection, const char* url, const char* method,
                              const char*, const char*, size_t* size, void** state) {
    auto* server = static_cast<HttpServer*>(self);
    if (*state == nullptr) {
      *state = new HttpServer::Connection;
      // Its headers are there; a body may follow.
      const char* length = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Length");
      uint64_t bytes = 0;
      if (length != nullptr && absl::SimpleAtoi(length, &bytes) && bytes > HttpServer::kBodyBytesMax) {
        return Send(connection, TextResponse(413, absl::StrCat("a body of ", bytes, " bytes; at most ",
                                                               HttpServer::kBodyBytesMax, " are taken\n")));
      }
      return MHD_YES;
    }
    auto* request_state = static_cast<HttpServer::Connection*>(*state);
    if (*size > 0) {
      // Nothing that is asked has a body: it is read, so that the client hears the answer, and dropped.
      request_state->body_bytes += *size;
      *size = 0;
      return request_state->body_bytes > HttpServer::kBodyBytesMax ? MHD_NO : MHD_YES;
    }
    WebRequest request;
    request.method = method;
    request.path = url;
    if (request.method != "GET" && request.method != "HEAD" && request.method != "POST") {
      WebResponse refused = TextResponse(405, "only GET, HEAD and POST\n");
      refused.headers.emplace_back("Allow", "GET, HEAD, POST");
      return Send(connection, refused);
    }
    {
      MutexLock lock(&server->mu_);
      server->guests_.Asked(static_cast<uint64_t>(DescriptorOf(connection)), Now());
    }
    MHD_get_connection_values(connection, MHD_HEADER_KIND, Collect, &request.headers);
    MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, Collect, &request.query);
    request.certificate = CertificateOf(connection, server->revocations_);
    return Send(connection, server->handler_(request));
  }
  static void OnCompleted(void* self, MHD_Connection* connection, void** state, MHD_RequestTerminationCode) {
    auto* server = static_cast<HttpServer*>(self);
    delete static_cast<HttpServer::Connection*>(*state);
    *state = nullptr;
    MutexLock lock(&server->mu_);
    server->guests_.Answered(static_cast<uint64_t>(DescriptorOf(connection)), Now());
    server->RingBy(Now() + HttpServer::kAskMax);
  }
  // The library closes a descriptor after it has told that the connection has ended.
  static void OnConnection(void* self, MHD_Connection* connection, void**,
                           MHD_ConnectionNotificationCode what) {
    auto* server = static_cast<HttpServer*>(self);
    const int fd = DescriptorOf(connection);
    if (what == MHD_CONNECTION_NOTIFY_STARTED) return server->Welcome(fd, connection);
    MutexLock lock(&server->mu_);
    server->guests_.Left(static_cast<uint64_t>(fd));
  }
  // What the library has to say of clients is theirs to know.
  static void OnLog(void*, const char*, va_list) {}
};

const std::string& WebRequest::Find(const std::map<std::string, std::string>& map, const std::string& name) {
  static const std::string kNone;
  const auto found = map.find(name);
  return found == map.end() ? kNone : found->second;
}

WebResponse TextResponse(int status, std::string text) {
  WebResponse response;
  response.status = status;
  response.body = std::make_shared<const std::string>(std::move(text));
  return response;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options, Handler handler) {
  const TlsFlags& tls = options.tls;
  std::unique_ptr<HttpServer> server(new HttpServer(options, std::move(handler)));
  if (!tls.crl.empty()) {
    RECON_ASSIGN_OR_RETURN(server->revocations_, Revocations::Open(tls.crl, tls.ca));
  }
  RECON_RETURN_IF_ERROR(server->ReadFiles().status());
  RECON_ASSIGN_OR_RETURN(server->listener_, Listen(options.flag, options.address));
  server->address_ = WithPort(options.address, server->listener_.get());
  server->served_ = server->texts_;
  server->daemon_ = server->StartDaemon(&server->served_);
  if (server->daemon_ == nullptr) {
    return absl::UnavailableError(absl::StrCat(options.flag, " ", options.address,
                                               ": the HTTP server does not start",
                                               tls.cert.empty() ? "" : " with TLS"));
  }
  if (!tls.cert.empty()) server->look_.Set(Now() + WatchedFile::kLook);
  return server;
}

HttpServer::HttpServer(Options options, Handler handler)
    : options_(std::move(options)),
      handler_(std::move(handler)),
      guests_({options_.connections_max, kAskMax, kAnswerMax}),
      overdue_([this] { CutOverdue(); }),
      look_([this] { Look(); }) {
  const TlsFlags& tls = options_.tls;
  if (tls.cert.empty()) return;
  for (const std::string& file : {tls.cert, tls.key, tls.ca}) files_.emplace_back(file);
}

void HttpServer::Welcome(int fd, MHD_Connection* connection) {
  sockaddr_storage peer = {};
  const MHD_ConnectionInfo* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
  if (info != nullptr && info->client_addr != nullptr) {
    const bool six = info->client_addr->sa_family == AF_INET6;
    std::memcpy(&peer, info->client_addr, six ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
  }
  const absl::Time now = Now();
  MutexLock lock(&mu_);
  const auto going = guests_.Came(static_cast<uint64_t>(fd), AddressRates::KeyOf(peer), now);
  if (going) shutdown(static_cast<int>(*going), SHUT_RDWR);
  RingBy(now + kAskMax);
}

void HttpServer::RingBy(absl::Time at) {
  if (at >= rings_at_) return;
  rings_at_ = at;
  overdue_.Set(at);
}

void HttpServer::CutOverdue() {
  const absl::Time now = Now();
  MutexLock lock(&mu_);
  for (const uint64_t fd : guests_.TakeOverdue(now)) shutdown(static_cast<int>(fd), SHUT_RDWR);
  rings_at_ = absl::InfiniteFuture();
  // Not for each that is to go a little later than another.
  const absl::Time next = guests_.NextOverdue();
  if (next != absl::InfiniteFuture()) RingBy(std::max(next, now + kOverdueLook));
}

absl::StatusOr<bool> HttpServer::ReadFiles() {
  bool changed = false;
  for (WatchedFile& file : files_) {
    RECON_ASSIGN_OR_RETURN(const bool other, file.Changed(Now()));
    changed |= other;
  }
  if (!changed) return false;
  TlsTexts texts;
  RECON_ASSIGN_OR_RETURN(texts.cert, ReadPemFile("--tls-cert", options_.tls.cert));
  RECON_ASSIGN_OR_RETURN(texts.key, ReadPemFile("--tls-key", options_.tls.key));
  RECON_ASSIGN_OR_RETURN(texts.ca, ReadPemFile("--tls-ca", options_.tls.ca));
  RECON_RETURN_IF_ERROR(CheckCertificates(options_.tls, texts, TlsEnd::kServer, Now()));
  for (WatchedFile& file : files_) file.NoteRead();
  texts_ = std::move(texts);
  return true;
}

HttpServer::OwnedDaemon HttpServer::StartDaemon(TlsTexts* texts) {
  // Its own descriptor, which it closes, so that the socket listens on without it.
  const int listener = fcntl(listener_.get(), F_DUPFD_CLOEXEC, 0);
  if (listener < 0) return nullptr;
  std::vector<MHD_OptionItem> options;
  unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG | MHD_USE_ITC;
  if (!texts->cert.empty()) {
    flags |= MHD_USE_TLS;
    options.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, texts->cert.data()});
    options.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, texts->key.data()});
    options.push_back({MHD_OPTION_HTTPS_MEM_TRUST, 0, texts->ca.data()});
  }
  options.push_back({MHD_OPTION_END, 0, nullptr});
  OwnedDaemon daemon(MHD_start_daemon(
      flags, 0, nullptr, nullptr, &HttpCallbacks::OnRequest, this, MHD_OPTION_EXTERNAL_LOGGER,
      &HttpCallbacks::OnLog, nullptr, MHD_OPTION_LISTEN_SOCKET, listener, MHD_OPTION_CONNECTION_LIMIT,
      static_cast<unsigned>(options_.connections_max) + kGoingMax, MHD_OPTION_CONNECTION_TIMEOUT,
      kIdleSecondsMax, MHD_OPTION_CONNECTION_MEMORY_LIMIT, kHeaderBytesMax, MHD_OPTION_NOTIFY_COMPLETED,
      &HttpCallbacks::OnCompleted, this, MHD_OPTION_NOTIFY_CONNECTION, &HttpCallbacks::OnConnection, this,
      MHD_OPTION_ARRAY, options.data(), MHD_OPTION_END));
  // One that does not start has closed it, or not: the library (0.9.75) does either.
  if (daemon == nullptr && SameFile(listener, listener_.get())) close(listener);
  return daemon;
}

void HttpServer::StopDaemon::operator()(MHD_Daemon* daemon) const { MHD_stop_daemon(daemon); }

absl::Status HttpServer::StartAnew() {
  // What kept the new ones from starting, a lack of descriptors, say, may have passed when the old ones
  // start: they are tried once more then.
  for (int tries = 0; tries < 2; ++tries) {
    daemon_ = nullptr;  // Its thread ends first: the handler is called on one.
    daemon_ = StartDaemon(&texts_);
    if (daemon_ != nullptr) {
      served_ = texts_;
      return absl::OkStatus();
    }
    daemon_ = StartDaemon(&served_);
    if (daemon_ == nullptr)
      return absl::UnavailableError("its HTTP server does not start; it is tried again");
  }
  // GnuTLS does not take what OpenSSL did.
  return absl::InvalidArgumentError(
      "its HTTP server does not start with the new certificates; those before stay");
}

void HttpServer::Look() {
  const absl::StatusOr<bool> read = ReadFiles();
  absl::Status looked = read.status();
  if (!looked.ok()) {
    looked = absl::InvalidArgumentError(absl::StrCat(looked.message(), "; what was there before stays"));
  }
  if ((read.ok() && *read) || daemon_ == nullptr) looked.Update(StartAnew());
  if (!looked.ok() && looked != looked_) LogWarn("{}: {}", options_.flag, looked.message());
  looked_ = looked;
  look_.Set(Now() + WatchedFile::kLook);
}

HttpServer::~HttpServer() = default;

}  // namespace recon
