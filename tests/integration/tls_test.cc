#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/integration/process_job.h"

namespace recon {
namespace {

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

}  // namespace

TEST_CASE("with mutual TLS a job runs, and strangers are kept out", "[tls]") {
  const Certificates ours("ours");
  const Certificates theirs("theirs");
  std::vector<std::string> server_flags = ours.Flags();
  for (const char* flag : {"--data-epochs", "1", "--split-samples", "500"}) server_flags.push_back(flag);
  ProcessJob job(server_flags);
  REQUIRE(job.StartServer());
  auto worker = job.StartWorker("one", ours.Flags());
  CHECK(worker->Wait(absl::Seconds(60)) == 0);
  CHECK(ControlClient(*ConnectTo(job.address(), ours.Client())).Status()->phase() == PHASE_FINISHED);
  CHECK(absl::IsUnavailable(ControlClient(*ConnectTo(job.address(), theirs.Client())).Status().status()));
  CHECK(absl::IsUnavailable(ControlClient(*ConnectTo(job.address(), {})).Status().status()));
  std::vector<std::string> stranger = theirs.Flags();
  stranger.insert(stranger.end(), {"--reconnect-for", "1s"});
  CHECK(job.StartWorker("two", stranger)->Wait(absl::Seconds(30)) == 1);
}

TEST_CASE("an address that is not loopback needs TLS or --insecure", "[tls]") {
  CHECK(absl::IsInvalidArgument(ServerCredentialsFor("0.0.0.0:1", {}).status()));
  TlsFlags insecure;
  insecure.insecure = true;
  CHECK(ServerCredentialsFor("0.0.0.0:1", insecure).ok());
  const TempDir directory;
  WriteWholeFile(directory / "not.pem", "hello");
  const TlsFlags broken{directory / "not.pem", directory / "not.pem", directory / "not.pem", false};
  const absl::Status status = ServerCredentialsFor("127.0.0.1:1", broken).status();
  CHECK(absl::StrContains(status.message(), "not.pem: is not a PEM file"));
}

}  // namespace recon
