#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/alarm.h"
#include "common/base/mutex.h"
#include "common/base/owned_fd.h"
#include "common/base/watched_file.h"
#include "common/rpc/certificates.h"
#include "common/rpc/revocations.h"
#include "common/web/web_guests.h"

struct MHD_Connection;
struct MHD_Daemon;

namespace recon {

// A request as far as a handler needs it. What a client sent may be anything.
struct WebRequest {
  std::string method;  // GET, HEAD or POST.
  std::string path;
  std::map<std::string, std::string> query;    // Decoded; of a name that comes twice, the first.
  std::map<std::string, std::string> headers;  // Names in lower case.
  // That the client has shown (DER), if our CA has made it, and not revoked; empty without TLS.
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

// A small HTTP/1.1 server that no client can make large, and none can keep others from: so many connections,
// of each so many bytes of headers and of a body. One has kAskMax to ask and kAnswerMax to take its answer;
// where there are too many, one of the address that has the most goes for the newcomer (WebGuests). GNU
// libmicrohttpd, on one thread with epoll: a client that is slow holds a connection, and no thread.
//
// With TLS, certificate, key and CA are read again when they change, and connections end then: browsers
// connect anew.
//
// Threads: the handler runs on the server's only thread and must not block. Everything else on the owner's,
// the looks at files and the looks at connections each on one of their own. Shutdown: the destructor cuts all
// connections and waits for a handler that runs.
class HttpServer {
 public:
  using Handler = std::function<WebResponse(const WebRequest&)>;

  static constexpr size_t kConnectionsMax = 64;
  static constexpr absl::Duration kAskMax = absl::Seconds(5);
  static constexpr absl::Duration kAnswerMax = absl::Seconds(30);
  // For a client that does nothing at all.
  static constexpr unsigned kIdleSecondsMax = 10;
  static constexpr size_t kHeaderBytesMax = 16 << 10;
  static constexpr size_t kBodyBytesMax = 4 << 10;

  struct Options {
    std::string flag;     // That errors name.
    std::string address;  // HOST:PORT, port 0 takes a free one.
    // With files all is encrypted, and requests have their clients' certificates, but for those in its crl.
    TlsFlags tls = {};
    size_t connections_max = kConnectionsMax;
  };

  // Unavailable if the port is taken, InvalidArgument for a host that is not one of this machine's and for
  // files that cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // With the port that was taken.
  const std::string& address() const { return address_; }

 private:
  struct Connection;
  friend struct HttpCallbacks;
  // Cuts all connections and waits for a handler that runs.
  struct StopDaemon {
    void operator()(MHD_Daemon* daemon) const;
  };
  using OwnedDaemon = std::unique_ptr<MHD_Daemon, StopDaemon>;

  HttpServer(Options options, Handler handler);
  // Into texts_, if they are others and fit together; whether they were read.
  absl::StatusOr<bool> ReadFiles();
  // On the socket of listener_; null if the library does not start it.
  OwnedDaemon StartDaemon(TlsTexts* texts);
  // In place of daemon_, with texts_, and else with served_. InvalidArgument if those are not taken, and
  // Unavailable if there is none now.
  absl::Status StartAnew();
  // The thread of look_.
  void Look();
  // The server's thread: a connection begins. Cuts the one that has to go for it.
  void Welcome(int fd, MHD_Connection* connection);
  // The thread of overdue_: cuts those that have taken too long.
  void CutOverdue();
  // Has overdue_ ring then at the latest.
  void RingBy(absl::Time at) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const Handler handler_;
  std::string address_;
  OwnedFd listener_;
  Revocations* revocations_ = nullptr;  // Null: none.

  // Its numbers are descriptors, which stay open while they are in it.
  Mutex mu_;
  WebGuests guests_ ABSL_GUARDED_BY(mu_);
  absl::Time rings_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  Alarm overdue_;

  // Of Start(), and then of the thread of look_.
  std::vector<WatchedFile> files_;  // Certificate, key and CA; none without TLS.
  TlsTexts texts_;                  // What was read last.
  TlsTexts served_;                 // What a daemon has started with last.
  OwnedDaemon daemon_;              // Null only while none starts.
  absl::Status looked_;             // What came of the last look.
  Alarm look_;                      // Last: it uses the rest. Never set without TLS.
};

}  // namespace recon
