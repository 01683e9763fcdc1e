#include "common/web/http_server.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/storage/http_client.h"
#include "common/web/metrics_server.h"
#include "tests/support/listening_socket.h"
#include "tests/support/process.h"
#include "tests/support/raw_http2.h"

namespace recon {
namespace {

constexpr size_t kConnections = 8;

// Answers /large with more than sockets keep, and everything else at once.
std::unique_ptr<HttpServer> Serve() {
  const auto large = std::make_shared<const std::string>(size_t{32} << 20, 'x');
  HttpServer::Options options;
  options.flag = "--test";
  options.address = "127.0.0.1:0";
  options.connections_max = kConnections;
  auto server = HttpServer::Start(options, [large](const WebRequest& request) {
    WebResponse response = TextResponse(200, "ok\n");
    if (request.path == "/large") response.body = large;
    return response;
  });
  REQUIRE(server.ok());
  return *std::move(server);
}

absl::StatusOr<HttpResponse> Get(const std::string& address, const std::string& path) {
  HttpRequest request;
  request.url = absl::StrCat("http://", address, path);
  request.fresh_connection = true;
  return HttpClient({}).Send(request);
}

}  // namespace

TEST_CASE("clients that ask or read slowly keep nobody out, however many they are", "[web]") {
  const auto server = Serve();
  std::vector<RawSender> slow;
  for (size_t i = 0; i < 8 * kConnections; ++i) {
    slow.push_back({ConnectTcp(server->address())});
    if (i % 3 == 0) continue;  // It says nothing.
    const std::string asks = i % 3 == 1 ? "GET / HT" : "GET /large HTTP/1.1\r\nHost: a\r\n\r\n";
    CHECK(Eventually([&] {
      slow.back().Send(asks);
      return slow.back().sent > 0;
    }));
    const auto answer = Get(server->address(), "/healthz");
    INFO(answer.status());
    REQUIRE(answer.ok());
    CHECK(answer->body == "ok\n");
  }
}

TEST_CASE("who asks a byte at a time is cut", "[web]") {
  const auto server = Serve();
  RawSender slow{ConnectTcp(server->address())};
  const std::string request = "GET / HTTP/1.1\r\nX-Slow: ";
  CHECK(Eventually(
      [&] {
        slow.Send(slow.sent < request.size() ? request.substr(slow.sent, 1) : "x");
        return slow.HungUp();
      },
      absl::Seconds(60)));
}

TEST_CASE("a connection serves one request after another", "[web]") {
  const auto server = Serve();
  HttpClient client({});
  HttpRequest request;
  request.url = absl::StrCat("http://", server->address(), "/");
  for (int i = 0; i < 100; ++i) CHECK(client.Send(request)->status == 200);
}

TEST_CASE("metrics are served as Prometheus reads them, and nothing else is", "[web]") {
  Metrics metrics;
  metrics.Counter("recon_test_things_total", "Things").Increment(3);
  const auto server = ServeMetrics("127.0.0.1:0", &metrics);
  REQUIRE(server.ok());
  const auto answer = Get((*server)->address(), "/metrics");
  REQUIRE(answer.ok());
  CHECK(answer->status == 200);
  CHECK(answer->header("content-type") == "text/plain; version=0.0.4; charset=utf-8");
  CHECK(absl::StrContains(answer->body, "\nrecon_test_things_total 3\n"));
  CHECK(Get((*server)->address(), "/")->status == 404);
}

TEST_CASE("a metrics port that is taken is an error, not an abort", "[web]") {
  const ListeningSocket taken;
  Metrics metrics;
  const absl::Status status = ServeMetrics(taken.address(), &metrics).status();
  CHECK(absl::IsUnavailable(status));
  CHECK(absl::StartsWith(status.message(), absl::StrCat("--metrics-address ", taken.address(), ": ")));
}

}  // namespace recon
