#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/integration/process_job.h"
#include "tests/support/certificates.h"

namespace recon {

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
