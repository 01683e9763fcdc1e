#include "tests/support/http_test_server.h"

#include <civetweb.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace recon {
namespace {

std::string Decoded(absl::string_view text) {
  std::string out(text.size() + 1, '\0');
  const int size = mg_url_decode(text.data(), static_cast<int>(text.size()), out.data(),
                                 static_cast<int>(out.size()), /*is_form_url_encoded=*/0);
  out.resize(static_cast<size_t>(std::max(size, 0)));
  return out;
}

}  // namespace

HttpTestServer::HttpTestServer(Handler handler) : handler_(std::move(handler)) {
  mg_init_library(0);
  const char* options[] = {"listening_ports", "127.0.0.1:0", "num_threads", "8", nullptr};
  mg_callbacks callbacks = {};
  mg_context* context = mg_start(&callbacks, nullptr, options);
  mg_server_port port = {};
  if (context == nullptr || mg_get_server_ports(context, 1, &port) != 1) {
    throw std::runtime_error("the test's HTTP server does not start");
  }
  context_ = context;
  address_ = absl::StrCat("127.0.0.1:", port.port);
  mg_set_request_handler(
      context, "/", [](mg_connection* c, void* user) { return OnRequest(c, user); }, this);
}

HttpTestServer::~HttpTestServer() {
  mg_stop(static_cast<mg_context*>(context_));
  mg_exit_library();
}

int HttpTestServer::OnRequest(void* connection, void* user) {
  auto* c = static_cast<mg_connection*>(connection);
  const mg_request_info* info = mg_get_request_info(c);
  Request request;
  request.method = info->request_method;
  request.path = info->local_uri;
  if (info->query_string != nullptr) {
    for (const absl::string_view part : absl::StrSplit(info->query_string, '&')) {
      const std::pair<absl::string_view, absl::string_view> pair =
          absl::StrSplit(part, absl::MaxSplits('=', 1));
      request.query[Decoded(pair.first)] = Decoded(pair.second);
    }
  }
  std::vector<char> buffer(65536);  // Its threads have small stacks.
  for (int size; (size = mg_read(c, buffer.data(), buffer.size())) > 0;) {
    request.body.append(buffer.data(), static_cast<size_t>(size));
  }
  const Response response = static_cast<HttpTestServer*>(user)->handler_(request);
  if (response.drop) return 1;  // The connection is closed.
  std::string head = absl::StrCat("HTTP/1.1 ", response.status, " Test\r\nConnection: close\r\n",
                                  "Content-Length: ", response.body.size(), "\r\n");
  for (const auto& [name, value] : response.headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  head += "\r\n";
  if (request.method != "HEAD") head += response.body.substr(0, response.drop_after);
  mg_write(c, head.data(), head.size());
  return response.status;
}

}  // namespace recon
