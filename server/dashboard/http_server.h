#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/rpc/certificates.h"

struct MHD_Daemon;

namespace recon {

// A request as far as a handler needs it. What a client sent may be anything.
struct WebRequest {
  std::string method;  // GET, HEAD or POST.
  std::string path;
  std::map<std::string, std::string> query;    // Decoded; of a name that comes twice, the first.
  std::map<std::string, std::string> headers;  // Names in lower case.
  // That the client has shown (DER), if our CA has made it; empty without TLS.
  std::string certificate = {};

  const std::string& Query(const std::string& name) const { return Find(query, name); }
  const std::string& Header(const std::string& name) const { return Find(headers, name); }

 private:
  static const std::string& Find(const std::map<std::string, std::string>& map, const std::string& name);
};

struct WebResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  // Shared with other responses: it is not copied for each client.
  std::shared_ptr<const std::string> body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};

WebResponse TextResponse(int status, std::string text);

// A small HTTP/1.1 server that no client can make large: so many connections, of each so many bytes of
// headers and of a body, and one that makes no progress is cut. GNU libmicrohttpd, on one thread with epoll:
// a client that never reads holds a connection for its timeout, and no thread.
//
// Threads: the handler runs on the server's only thread and must not block. Everything else on the owner's.
// Shutdown: the destructor cuts all connections and waits for a handler that runs.
class HttpServer {
 public:
  using Handler = std::function<WebResponse(const WebRequest&)>;

  static constexpr unsigned kConnectionsMax = 64;
  static constexpr unsigned kIdleSecondsMax = 10;
  static constexpr size_t kHeaderBytesMax = 16 << 10;
  static constexpr size_t kBodyBytesMax = 4 << 10;

  // `address`: HOST:PORT, port 0 takes a free one. With `tls` files all is encrypted, and requests have
  // their clients' certificates. Unavailable if the port is taken, InvalidArgument, naming `flag`, for a
  // host that is not one of this machine's and for files that cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const std::string& flag,
                                                           const std::string& address, const TlsFlags& tls,
                                                           Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the port that was taken.
  const std::string& address() const { return address_; }

 private:
  struct Connection;
  friend struct HttpCallbacks;
  explicit HttpServer(Handler handler) : handler_(std::move(handler)) {}

  const Handler handler_;
  std::string address_;
  TlsTexts tls_;
  MHD_Daemon* daemon_ = nullptr;
};

}  // namespace recon
