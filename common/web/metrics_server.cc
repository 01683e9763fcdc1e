#include "common/web/metrics_server.h"

namespace recon {

absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(const std::string& address, const Metrics* metrics) {
  HttpServer::Options options;
  options.flag = "--metrics-address";
  options.address = address;
  options.connections_max = 16;
  return HttpServer::Start(options, [metrics](const WebRequest& request) {
    if (request.path != "/metrics") return TextResponse(404, "metrics are at /metrics\n");
    if (request.method == "POST") return TextResponse(405, "only GET and HEAD\n");
    WebResponse response = TextResponse(200, metrics->Text());
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    return response;
  });
}

}  // namespace recon
