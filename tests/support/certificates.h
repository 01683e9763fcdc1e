#pragma once

#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/rpc/credentials.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace recon {

// A CA and certificates signed by it, made by openssl.
class Certificates {
 public:
  explicit Certificates(const std::string& ca_name) {
    Openssl({"req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", directory_ / "ca.key", "-out",
             directory_ / "ca.pem", "-days", "2", "-subj", "/CN=" + ca_name});
    Openssl({"req", "-newkey", "rsa:2048", "-nodes", "-keyout", directory_ / "host.key", "-out",
             directory_ / "host.csr", "-subj", "/CN=localhost"});
    WriteWholeFile(directory_ / "extensions", "subjectAltName=DNS:localhost,IP:127.0.0.1\n");
    Openssl({"x509", "-req", "-in", directory_ / "host.csr", "-CA", directory_ / "ca.pem", "-CAkey",
             directory_ / "ca.key", "-CAcreateserial", "-out", directory_ / "host.pem", "-days", "2",
             "-extfile", directory_ / "extensions"});
  }

  std::vector<std::string> Flags() const {
    return {"--tls-cert", directory_ / "host.pem", "--tls-key", directory_ / "host.key",
            "--tls-ca",   directory_ / "ca.pem"};
  }
  TlsFlags Client() const {
    return {directory_ / "host.pem", directory_ / "host.key", directory_ / "ca.pem", false};
  }

 private:
  void Openssl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "/usr/bin/openssl");
    std::string output;
    const int code = RunProgram(arguments, &output);
    INFO(output);
    REQUIRE(code == 0);
  }

  TempDir directory_;
};

}  // namespace recon
