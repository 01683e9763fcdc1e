#pragma once

#include <optional>
#include <string>

#include "common/web/http_server.h"

namespace recon {

// Whether a request may be answered, before anybody looks at what it asks: null if it may, else the answer.
// Pure.
//
// A page of a stranger that a browser has open must neither read the job's data nor act on it. By DNS
// rebinding it reaches this server under a name of its own: the Host header has to be a number, localhost, or
// a name of ours
// (`own_names`, in lower case). It may send a POST: that has to carry a header that browsers send to
// strangers only when these agree, which this server never does, and an Origin, where there is one, that is
// this server itself.
class RequestChecks {
 public:
  // `tls`: who asks must have a certificate of the CA; all but probes of health, which say nothing about the
  // job.
  RequestChecks(bool tls, std::vector<std::string> own_names) : tls_(tls), own_names_(std::move(own_names)) {}

  std::optional<WebResponse> Refusal(const WebRequest& request) const;

 private:
  const bool tls_;
  const std::vector<std::string> own_names_;
};

// Headers of every answer: scripts, styles and data come from this server alone, nothing is kept by caches,
// nobody shows it in a frame.
void AddSecurityHeaders(WebResponse* response);

}  // namespace recon
