#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "common/rpc/credentials.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace recon {

// A CA and a certificate signed by it, made by openssl.
class Certificates {
 public:
  // `extensions` of the certificate: hosts that it is for, and what for.
  explicit Certificates(const std::string& ca_name,
                        const std::string& extensions = "subjectAltName=DNS:localhost,IP:127.0.0.1\n") {
    Openssl({"req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", directory_ / "ca.key", "-out",
             directory_ / "ca.pem", "-days", "2", "-subj", "/CN=" + ca_name});
    Openssl({"req", "-newkey", "rsa:2048", "-nodes", "-keyout", directory_ / "host.key", "-out",
             directory_ / "host.csr", "-subj", "/CN=localhost"});
    WriteWholeFile(directory_ / "extensions", extensions);
    Sign(directory_ / "host.pem", 2);
  }

  std::vector<std::string> Flags() const {
    return {"--tls-cert", directory_ / "host.pem", "--tls-key", directory_ / "host.key",
            "--tls-ca",   directory_ / "ca.pem"};
  }
  TlsFlags Client() const {
    return {directory_ / "host.pem", directory_ / "host.key", directory_ / "ca.pem", false};
  }

  // Runs openssl.
  static void Openssl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "/usr/bin/openssl");
    std::string output;
    const int code = RunProgram(arguments, &output);
    INFO(output);
    REQUIRE(code == 0);
  }
  // Another certificate of the same key, valid for so many days: with 0 it expires within the second.
  void Sign(const std::string& path, int days) const {
    Openssl({"x509", "-req", "-in", directory_ / "host.csr", "-CA", directory_ / "ca.pem", "-CAkey",
             directory_ / "ca.key", "-CAcreateserial", "-out", path, "-days", std::to_string(days),
             "-extfile", directory_ / "extensions"});
  }
  // A certificate of this CA whose names are `subject` ("/OU=operator/CN=x"), with a key of its own.
  TlsFlags Issue(const std::string& name, const std::string& subject, std::string extensions = "") const {
    if (extensions.empty()) extensions = directory_ / "extensions";
    const std::string base = directory_ / name;
    Openssl({"req", "-newkey", "rsa:2048", "-nodes", "-keyout", base + ".key", "-out", base + ".csr", "-subj",
             subject});
    Openssl({"x509", "-req", "-in", base + ".csr", "-CA", directory_ / "ca.pem", "-CAkey",
             directory_ / "ca.key", "-CAcreateserial", "-out", base + ".pem", "-days", "2", "-extfile",
             extensions});
    return {base + ".pem", base + ".key", ca(), false};
  }
  // A CA that this one has signed.
  TlsFlags IssueAuthority(const std::string& name) const {
    WriteWholeFile(directory_ / "authority", "basicConstraints=critical,CA:TRUE\n");
    return Issue(name, "/CN=" + name, directory_ / "authority");
  }
  // A certificate of that one, and beside it in `cert` the certificate of that one itself.
  TlsFlags IssueBy(const TlsFlags& authority, const std::string& name, const std::string& subject) const {
    const std::string base = directory_ / name;
    Openssl({"req", "-newkey", "rsa:2048", "-nodes", "-keyout", base + ".key", "-out", base + ".csr", "-subj",
             subject});
    Openssl({"x509", "-req", "-in", base + ".csr", "-CA", authority.cert, "-CAkey", authority.key,
             "-CAcreateserial", "-out", base + ".pem", "-days", "2", "-extfile", directory_ / "extensions"});
    WriteWholeFile(base + ".chain.pem", ReadWholeFile(base + ".pem") + ReadWholeFile(authority.cert));
    return {base + ".chain.pem", base + ".key", ca(), false};
  }
  // Takes a certificate of this CA back, and writes the list of all that were, valid for so many days.
  std::string Revoke(const std::string& certificate, int days = 2) const {
    const std::string config = directory_ / "ca.conf";
    const std::string database = directory_ / "index.txt";
    if (!std::filesystem::exists(database)) WriteWholeFile(database, "");
    WriteWholeFile(config, "[ca]\ndefault_ca = job\n[job]\ndatabase = " + database + "\ncertificate = " +
                               ca() + "\nprivate_key = " + directory_ / "ca.key" + "\ndefault_md = sha256\n");
    Openssl({"ca", "-config", config, "-revoke", certificate});
    Openssl({"ca", "-config", config, "-gencrl", "-crldays", std::to_string(days), "-out", crl()});
    return crl();
  }
  std::string crl() const { return directory_ / "crl.pem"; }
  std::string cert() const { return directory_ / "host.pem"; }
  std::string key() const { return directory_ / "host.key"; }
  std::string ca() const { return directory_ / "ca.pem"; }
  const TempDir& directory() const { return directory_; }

 private:
  TempDir directory_;
};

}  // namespace recon
