#include "server/dashboard/request_checks.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace recon {
namespace {

constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

bool IsNumber(const std::string& host) {
  in6_addr address;
  if (inet_pton(AF_INET, host.c_str(), &address) == 1) return true;
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return brackets && inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &address) == 1;
}

// Without the port, in lower case.
std::string HostOf(const std::string& host_port) {
  const size_t bracket = host_port.rfind(']');
  const size_t colon = host_port.find(':', bracket == std::string::npos ? 0 : bracket);
  return absl::AsciiStrToLower(host_port.substr(0, colon));
}

}  // namespace

std::optional<WebResponse> RequestChecks::Refusal(const WebRequest& request) const {
  const bool probe = request.path == "/healthz" || request.path == "/readyz";
  if (tls_ && request.certificate.empty() && !probe)
    return TextResponse(
        403,
        "a certificate of the job's CA is needed (--tls-ca), and none that it has revoked (--tls-crl)\n");
  const std::string& host = request.Header("host");
  const std::string name = HostOf(host);
  const bool ours = IsNumber(name) || name == "localhost" ||
                    std::find(own_names_.begin(), own_names_.end(), name) != own_names_.end();
  if (!ours) {
    return TextResponse(
        421, "this server has another name: use its address, localhost or the name in --dashboard\n");
  }
  if (request.method != "POST") return std::nullopt;
  if (request.Header("x-recon") != "1") return TextResponse(403, "a POST needs the header X-Recon: 1\n");
  const std::string& origin = request.Header("origin");
  if (!origin.empty() && origin != absl::StrCat(tls_ ? "https://" : "http://", host))
    return TextResponse(403, "a POST of another site's page\n");
  return std::nullopt;
}

void AddSecurityHeaders(WebResponse* response) {
  response->headers.emplace_back("Content-Security-Policy", kPolicy);
  response->headers.emplace_back("X-Content-Type-Options", "nosniff");
  response->headers.emplace_back("Cache-Control", "no-store");
  response->headers.emplace_back("Referrer-Policy", "no-referrer");
  response->headers.emplace_back("Cross-Origin-Resource-Policy", "same-origin");
  response->headers.emplace_back("X-Frame-Options", "DENY");
}

}  // namespace recon
