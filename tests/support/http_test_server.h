#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace recon {

// A small HTTP server on loopback that answers what a test wants it to, drops connections included. The
// handler runs on several threads.
class HttpTestServer {
 public:
  struct Request {
    std::string method, path, body;
    std::map<std::string, std::string> query;  // Decoded.

    std::string Query(const std::string& name) const {
      const auto found = query.find(name);
      return found == query.end() ? "" : found->second;
    }
  };
  struct Response {
    int status = 200;
    std::string body;
    std::vector<std::pair<std::string, std::string>> headers = {};
    bool drop = false;               // No answer at all.
    size_t drop_after = ~size_t{0};  // So many bytes of the body, then no more.
  };
  using Handler = std::function<Response(const Request&)>;

  explicit HttpTestServer(Handler handler);
  ~HttpTestServer();
  HttpTestServer(const HttpTestServer&) = delete;
  HttpTestServer& operator=(const HttpTestServer&) = delete;

  // "127.0.0.1:port".
  const std::string& address() const { return address_; }

 private:
  static int OnRequest(void* connection, void* user);

  const Handler handler_;
  std::string address_;
  void* context_ = nullptr;
};

}  // namespace recon
