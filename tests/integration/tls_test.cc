#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/rpc/grpc_log.h"
#include "common/rpc/revocation_list.h"
#include "common/rpc/tls_probe.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"
#include "tests/integration/process_job.h"
#include "tests/support/certificates.h"
#include "tools/source_paths.h"

namespace recon {
namespace {

std::vector<std::string> FlagsOf(const TlsFlags& tls) {
  return {"--tls-cert", tls.cert, "--tls-key", tls.key, "--tls-ca", tls.ca};
}

// What is wrong with these files, for that end at that time; empty if nothing is.
std::string ErrorOf(const TlsFlags& tls, TlsEnd end = TlsEnd::kServer, absl::Time now = Now()) {
  const TlsTexts texts{ReadWholeFile(tls.cert), ReadWholeFile(tls.key), ReadWholeFile(tls.ca)};
  const absl::Status status = CheckCertificates(tls, texts, end, now);
  CHECK((status.ok() || absl::IsInvalidArgument(status)));
  return std::string(status.message());
}

int CountOf(const std::string& text, const std::string& part) {
  return static_cast<int>(std::vector<std::string>(absl::StrSplit(text, part)).size()) - 1;
}

// A gRPC server that checks nothing as it starts, unlike ours.
struct CarelessServer {
  explicit CarelessServer(const TlsFlags& tls) {
    grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = ReadWholeFile(tls.ca);
    options.pem_key_cert_pairs.push_back({ReadWholeFile(tls.key), ReadWholeFile(tls.cert)});
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port); }

  Control::Service service;
  int port = 0;
  std::unique_ptr<grpc::Server> server;
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
}

TEST_CASE("an address that is not loopback needs TLS or --insecure", "[tls]") {
  CHECK(absl::IsInvalidArgument(ServerCredentialsFor("0.0.0.0:1", {}).status()));
  TlsFlags insecure;
  insecure.insecure = true;
  CHECK(ServerCredentialsFor("0.0.0.0:1", insecure).ok());
}

TEST_CASE("files of TLS that cannot be read, or are something else, are named", "[tls]") {
  const Certificates ours("ours");
  const auto error = [&](const std::string& ca) {
    TlsFlags tls = ours.Client();
    tls.ca = ca;
    const absl::Status status = ServerCredentialsFor("127.0.0.1:1", tls).status();
    CHECK(absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  const TempDir directory;
  WriteWholeFile(directory / "not.pem", "hello");
  WriteWholeFile(directory / "empty.pem", "");
  WriteWholeFile(directory / "large.pem", std::string((1 << 20) + 1, 'x'));
  CHECK(error(directory / "not.pem") == "--tls-ca " + (directory / "not.pem") + ": is not a PEM file");
  CHECK(absl::EndsWith(error(directory / "empty.pem"), "empty.pem: is empty"));
  CHECK(absl::EndsWith(error(directory / "large.pem"), "large.pem has more than 1048576 bytes"));
  CHECK(absl::EndsWith(error(directory / "absent.pem"),
                       "absent.pem: cannot be opened: No such file or directory"));
  CHECK(error(directory.path()) == "--tls-ca " + directory.path() + " is a directory, no regular file");
}

TEST_CASE("certificates that do not fit together are named before anybody connects", "[tls]") {
  const Certificates ours("ours");
  const Certificates theirs("theirs");
  const Certificates namesake("ours");
  const TlsFlags good = ours.Client();
  CHECK(ErrorOf(good).empty());
  CHECK(ErrorOf(good, TlsEnd::kClient).empty());
  TlsFlags tls = good;
  tls.key = theirs.key();
  CHECK(ErrorOf(tls) ==
        "--tls-key " + tls.key + ": does not belong to the certificate in --tls-cert " + tls.cert);
  tls = good;
  tls.ca = theirs.ca();
  CHECK(ErrorOf(tls) == "--tls-cert " + tls.cert + ": is not of the CA in --tls-ca " + tls.ca +
                            ": it was signed by ours, the CA is theirs");
  tls.ca = namesake.ca();
  CHECK(absl::StrContains(ErrorOf(tls), "it was signed by ours, the CA is ours"));
  CHECK(absl::StrContains(ErrorOf(good, TlsEnd::kServer, Now() + absl::Hours(72)),
                          "--tls-cert " + good.cert + ": has expired on "));
  CHECK(absl::StrContains(ErrorOf(good, TlsEnd::kServer, Now() - absl::Hours(1)),
                          "--tls-cert " + good.cert + ": is not valid before "));
  tls = good;
  tls.ca = ours.key();
  CHECK(ErrorOf(tls) == "--tls-ca " + tls.ca + ": has no certificate");
  tls = good;
  tls.key = ours.cert();
  CHECK(ErrorOf(tls) == "--tls-key " + tls.key + ": has no key");
  tls.key = ours.directory() / "locked.key";
  Certificates::Openssl({"rsa", "-aes128", "-in", ours.key(), "-out", tls.key, "-passout", "pass:secret"});
  CHECK(ErrorOf(tls) == "--tls-key " + tls.key + ": has a passphrase: give one without");
}

TEST_CASE("every certificate of a file of CAs counts, and what each is for", "[tls]") {
  const Certificates ours("ours");
  const Certificates theirs("theirs");
  TlsFlags tls = ours.Client();
  tls.ca = ours.directory() / "two.pem";
  std::string damaged = ReadWholeFile(theirs.ca());
  damaged.replace(damaged.size() / 2, 8, "????????");
  WriteWholeFile(tls.ca, ReadWholeFile(ours.ca()) + damaged);
  CHECK(ErrorOf(tls) == "--tls-ca " + tls.ca + ": certificate 2 of it is damaged");
  WriteWholeFile(tls.ca, ReadWholeFile(theirs.ca()) + ReadWholeFile(ours.ca()));
  CHECK(ErrorOf(tls).empty());
  const Certificates operators("operators", "extendedKeyUsage=clientAuth\n");
  CHECK(ErrorOf(operators.Client(), TlsEnd::kClient).empty());
  CHECK(absl::StrContains(ErrorOf(operators.Client(), TlsEnd::kServer), "extended key usage"));
  // A certificate that is valid longer than its CA, which has two days.
  tls = ours.Client();
  tls.cert = ours.directory() / "longer.pem";
  ours.Sign(tls.cert, 9);
  CHECK(absl::StrContains(ErrorOf(tls, TlsEnd::kServer, Now() + absl::Hours(96)),
                          "--tls-ca " + tls.ca + ": the CA ours has expired on "));
}

TEST_CASE("a server with a wrong key or an expired certificate ends with 2 and says so", "[tls]") {
  const Certificates ours("ours");
  const Certificates theirs("theirs");
  const TempDir directory;
  const auto refused = [&](const TlsFlags& tls, const std::string& text) {
    std::vector<std::string> arguments = {"recon-server", "--data", directory / "data", "--listen",
                                          "127.0.0.1:0"};
    const std::vector<std::string> flags = FlagsOf(tls);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::string output;
    CHECK(RunProgram(arguments, &output) == 2);
    // Behind the line that says what the machine allows.
    CHECK(absl::StrContains(output, "recon-server: " + text));
    CHECK(CountOf(output, "\n") == 2);
  };
  TlsFlags tls = ours.Client();
  tls.key = theirs.key();
  refused(tls, "--tls-key " + tls.key + ": does not belong");
  tls = ours.Client();
  tls.cert = ours.directory() / "old.pem";
  ours.Sign(tls.cert, 0);
  REQUIRE(Eventually([&] { return !ErrorOf(tls).empty(); }));
  refused(tls, "--tls-cert " + tls.cert + ": has expired on ");
  tls = ours.Client();
  REQUIRE(chmod(tls.key.c_str(), 0644) == 0);
  refused(tls, "--tls-key " + tls.key + ": all users of this machine can read it: chmod 600");
}

TEST_CASE("who is refused, or refuses the server, learns why at once", "[tls]") {
  const Certificates ours("ours");
  const Certificates theirs("theirs");
  ProcessJob job(ours.Flags());
  REQUIRE(job.StartServer());
  // Each by reconctl, and by a worker that would try for ten minutes.
  const auto refused = [&](const TlsFlags& tls, const std::string& text) {
    const std::vector<std::string> flags = tls.cert.empty() ? std::vector<std::string>() : FlagsOf(tls);
    std::vector<std::string> arguments = {"reconctl", "status", "--server", job.address()};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::string output;
    CHECK(RunProgram(arguments, &output) == 2);
    CHECK(output == absl::StrCat("reconctl: ", job.address(), ": ", text, "\n"));
    auto worker = job.StartWorker("stranger", flags);
    CHECK(worker->Wait(absl::Seconds(30)) == 2);
    CHECK(
        absl::EndsWith(worker->output(), absl::StrCat("\nrecon-worker: ", job.address(), ": ", text, "\n")));
    CHECK(CountOf(worker->output(), "\n") == 2);
    unlink((job.directory() / "stranger.log").c_str());
  };
  refused(theirs.Client(), "the server's certificate is not of the CA in --tls-ca " + theirs.ca() +
                               ": it was signed by ours (self-signed certificate in certificate chain)");
  refused({}, "the server wants TLS: give --tls-cert, --tls-key and --tls-ca");
  TlsFlags both = theirs.Client();
  both.ca = theirs.directory() / "both.pem";
  WriteWholeFile(both.ca, ReadWholeFile(ours.ca()) + ReadWholeFile(theirs.ca()));
  refused(both, "the server does not take the certificate in --tls-cert " + both.cert +
                    ": it was signed by theirs, the server takes those of ours");
  // The server has a line of its own for each cause, however often it came, and none of gRPC's.
  // A client may know it before the server has written it.
  CHECK(Eventually([&] { return absl::StrContains(job.ServerLog(), "127.0.0.1: it does not speak TLS"); }));
  const std::string log = job.ServerLog();
  INFO(log);
  CHECK(CountOf(log, "refused a connection of 127.0.0.1: its certificate is not of the CA in --tls-ca") == 1);
  CHECK(CountOf(log, "refused a connection of 127.0.0.1: it does not speak TLS") == 1);
  CHECK_FALSE(absl::StrContains(log, "ssl_transport_security"));
}

TEST_CASE("a server's certificate that has expired, or is of another host, is named to who connects",
          "[tls]") {
  const Certificates ours("ours");
  TlsFlags old = ours.Client();
  old.cert = ours.directory() / "old.pem";
  ours.Sign(old.cert, 0);
  const CarelessServer expired(old);
  REQUIRE(Eventually([&] { return !ProbeTls(expired.address(), ours.Client()).ok(); }));
  const std::string said(ProbeTls(expired.address(), ours.Client()).message());
  CHECK(absl::StartsWith(said, expired.address() + ": the server's certificate has expired on "));

  const Certificates elsewhere("elsewhere", "subjectAltName=DNS:head.example,IP:10.0.0.1,IP:fd00::1\n");
  const CarelessServer other(elsewhere.Client());
  CHECK(ProbeTls(other.address(), elsewhere.Client()).message() ==
        other.address() +
            ": the server's certificate is for head.example, 10.0.0.1, fd00::1, not for 127.0.0.1");
  const Certificates clients("clients", "extendedKeyUsage=clientAuth\n");
  const CarelessServer client(clients.Client());
  CHECK(absl::EndsWith(ProbeTls(client.address(), clients.Client()).message(),
                       "is not one for servers, by its extended key usage"));
}

TEST_CASE("a handshake that succeeds, or meets nobody, explains nothing", "[tls]") {
  const Certificates ours("ours");
  const CarelessServer server(ours.Client());
  CHECK(ProbeTls(server.address(), ours.Client()).ok());
  CHECK(ProbeTls("127.0.0.1:1", ours.Client()).ok());
  CHECK(ProbeTls("127.0.0.1:1", {}).ok());
  ProcessJob plain({});
  REQUIRE(plain.StartServer());
  CHECK(ProbeTls(plain.address(), {}).ok());
  CHECK(ProbeTls(plain.address(), ours.Client()).message() ==
        plain.address() + ": the server does not speak TLS: leave out --tls-cert, --tls-key and --tls-ca");
}

TEST_CASE("a server whose certificate its head does not take ends with 2", "[tls]") {
  const Certificates ours("ours");
  const Certificates theirs("theirs");
  ProcessJob job(ours.Flags());
  REQUIRE(job.StartServer());
  const auto refused = [&](const TlsFlags& tls, const std::string& text) {
    std::vector<std::string> arguments = {"recon-server", "--data",      job.directory() / "joins",
                                          "--listen",     "127.0.0.1:0", "--join",
                                          job.address()};
    const std::vector<std::string> flags = tls.cert.empty() ? std::vector<std::string>() : FlagsOf(tls);
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    std::string output;
    CHECK(RunProgram(arguments, &output) == 2);
    CHECK(absl::EndsWith(output, absl::StrCat("recon-server: ", job.address(), ": ", text, "\n")));
    CHECK(CountOf(output, text) == 1);
  };
  refused(theirs.Client(), "the server's certificate is not of the CA in --tls-ca " + theirs.ca() +
                               ": it was signed by ours (self-signed certificate in certificate chain)");
  refused({}, "the server wants TLS: give --tls-cert, --tls-key and --tls-ca");
}

TEST_CASE("a worker that has trained with a server outlives one with another certificate in its place",
          "[tls]") {
  const Certificates ours("ours");
  const Certificates theirs("theirs");
  std::vector<std::string> flags = ours.Flags();
  for (const char* flag : {"--data-epochs", "1000", "--split-samples", "200"}) flags.push_back(flag);
  ProcessJob job(flags);
  REQUIRE(job.StartServer());
  auto worker = job.StartWorker("one", ours.Flags());
  const auto samples = [&]() -> uint64_t {
    const auto status = ControlClient(*ConnectTo(job.address(), ours.Client())).Status();
    return status.ok() ? status->samples_completed() : 0;
  };
  REQUIRE(Eventually([&] { return samples() > 400; }));
  job.server().Kill();
  std::vector<std::string> other = {"recon-server", "--data", job.directory() / "other", "--listen",
                                    job.address()};
  const std::vector<std::string> their_flags = theirs.Flags();
  other.insert(other.end(), their_flags.begin(), their_flags.end());
  {
    Process impostor(other, job.directory() / "impostor.log");
    CHECK(Eventually([&] { return absl::StrContains(job.WorkerLog("one"), "the server is silent"); },
                     absl::Seconds(60)));
    CHECK(impostor.running());
  }
  CHECK(worker->running());
  REQUIRE(job.StartServer());
  const uint64_t before = samples();
  CHECK(Eventually([&] { return samples() > before + 400; }, absl::Seconds(60)));
}

TEST_CASE("a certificate that is replaced while a job trains: connections go on, and new ones show it",
          "[tls]") {
  const Certificates ours("ours");
  std::vector<std::string> flags = ours.Flags();
  for (const char* flag : {"--data-epochs", "100000", "--split-samples", "200"}) flags.push_back(flag);
  ProcessJob job(flags);
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("one", ours.Flags());
  const auto status = [&] { return ControlClient(*ConnectTo(job.address(), ours.Client())).Status(); };
  const auto goes_on = [&] {
    const auto before = status();
    if (!before.ok()) return false;
    return Eventually([&] {
      const auto now = status();
      return now.ok() && now->samples_completed() > before->samples_completed() + 400;
    });
  };
  REQUIRE(Eventually([&] { return status().ok(); }));
  REQUIRE(goes_on());
  // Of the certificate that the server shows.
  const auto serial = [&] {
    std::string output;
    RunProgram({"/bin/sh", "-c",
                absl::StrCat("openssl s_client -connect ", job.address(),
                             " </dev/null 2>/dev/null | openssl x509 -noout -serial")},
               &output);
    return output;
  };
  const std::string first = serial();
  REQUIRE(absl::StartsWith(first, "serial="));
  ours.Sign(ours.cert() + ".new", 3);
  std::filesystem::rename(ours.cert() + ".new", ours.cert());
  CHECK(Eventually([&] { return absl::StartsWith(serial(), "serial=") && serial() != first; }));
  CHECK(goes_on());
  CHECK(!absl::StrContains(job.WorkerLog("one"), "registered again"));
  const auto late = job.StartWorker("late", ours.Flags());
  CHECK(Eventually([&] { return status()->members_size() == 2; }));
  CHECK(goes_on());
}

TEST_CASE("a server with a revoked certificate is not taken by who has the list, also once it is in it",
          "[tls]") {
  const Certificates ours("ours");
  const TlsFlags stolen = ours.Issue("stolen", "/CN=localhost");
  std::vector<std::string> flags = FlagsOf(stolen);
  for (const char* flag : {"--data-epochs", "100000", "--split-samples", "200"}) flags.push_back(flag);
  ProcessJob job(flags);
  REQUIRE(job.StartServer());
  TlsFlags client = ours.Client();
  // Of another certificate: the server is taken.
  client.crl = ours.Revoke(ours.Issue("other", "/CN=other").cert);
  int connections = 0;
  const auto asked = [&](const std::string& address) {
    return ControlClient(*ConnectTo(address, client, ++connections)).Status().status();
  };
  CHECK(Eventually([&] { return asked(job.address()).ok(); }));

  ours.Revoke(stolen.cert);
  CHECK(Eventually([&] { return absl::IsUnavailable(asked(job.address())); }));
  const std::string why =
      absl::StrCat(job.address(), ": the server's certificate is revoked, by --tls-crl ", client.crl);
  CHECK(ProbeTls(job.address(), client).message() == why);
  std::vector<std::string> with_list = FlagsOf(client);
  with_list.insert(with_list.end(), {"--tls-crl", client.crl});
  std::vector<std::string> arguments = {"reconctl", "status", "--server", job.address()};
  arguments.insert(arguments.end(), with_list.begin(), with_list.end());
  std::string output;
  CHECK(RunProgram(arguments, &output) == 2);
  CHECK(output == absl::StrCat("reconctl: ", why, "\n"));
  auto worker = job.StartWorker("one", with_list);
  CHECK(worker->Wait(absl::Seconds(60)) == 2);
  CHECK(absl::StrContains(job.WorkerLog("one"), why));
  Process joined(
      [&] {
        std::vector<std::string> join = {
            "recon-server", "--join",     job.address(), "--data", job.directory() / "joined",
            "--listen",     "127.0.0.1:0"};
        join.insert(join.end(), with_list.begin(), with_list.end());
        return join;
      }(),
      job.directory() / "joined.log");
  CHECK(joined.Wait(absl::Seconds(60)) == 2);
  CHECK(absl::StrContains(joined.output(), why));
  // Who has no list takes it.
  client.crl = "";
  CHECK(asked(job.address()).ok());
}

TEST_CASE("who has a list of revoked certificates looks at a server's host name as ever", "[tls]") {
  const Certificates ours("ours", "subjectAltName=DNS:elsewhere.example\n");
  CarelessServer elsewhere(ours.Client());
  TlsFlags client = ours.Client();
  client.crl = ours.Revoke(ours.Issue("other", "/CN=other").cert);
  const absl::Status asked = ControlClient(*ConnectTo(elsewhere.address(), client)).Status().status();
  CHECK(absl::IsUnavailable(asked));
  INFO(asked);
  CHECK(absl::StrContains(asked.message(), "Hostname Verification Check failed"));
}

TEST_CASE("make_certs.sh makes what a job needs", "[tls]") {
  const TempDir directory;
  const std::string certs = directory / "certs";
  std::string output;
  REQUIRE(RunProgram({InSources("tools/make_certs.sh"), certs, "localhost", "127.0.0.1"}, &output) == 0);
  const auto of = [&](const std::string& who) {
    return TlsFlags{certs + "/" + who + ".pem", certs + "/" + who + ".key", certs + "/ca.pem", false};
  };
  std::vector<std::string> flags = FlagsOf(of("server"));
  for (const char* flag : {"--data-epochs", "1", "--split-samples", "500"}) flags.push_back(flag);
  ProcessJob job(flags);
  REQUIRE(job.StartServer());
  // A second run keeps the CA: what it makes fits to what there was.
  REQUIRE(RunProgram({InSources("tools/make_certs.sh"), certs, "localhost", "127.0.0.1"}, &output) == 0);
  CHECK(job.StartWorker("one", FlagsOf(of("worker")))->Wait(absl::Seconds(60)) == 0);
  CHECK(ControlClient(*ConnectTo(job.address(), of("operator"))).Status()->phase() == PHASE_FINISHED);
  CHECK(ErrorOf(of("worker"), TlsEnd::kServer).empty());
  CHECK(absl::StrContains(ErrorOf(of("operator"), TlsEnd::kServer), "extended key usage"));
  // One is taken back: the list names it, and is the CA's.
  REQUIRE(RunProgram({InSources("tools/make_certs.sh"), "--revoke", certs + "/worker.pem", certs}, &output) ==
          0);
  const auto list =
      RevocationList::Parse(ReadWholeFile(certs + "/crl.pem"), ReadWholeFile(certs + "/ca.pem"));
  REQUIRE(list.ok());
  CHECK(list->Has(ReadCertificates(ReadWholeFile(certs + "/worker.pem"))->front().get()));
  CHECK_FALSE(list->Has(ReadCertificates(ReadWholeFile(certs + "/operator.pem"))->front().get()));
  CHECK(list->next_update() > WallNow() + absl::Hours(24 * 300));
  CHECK(RunProgram({InSources("tools/make_certs.sh"), "--revoke", certs}, &output) == 2);
  CHECK(RunProgram({InSources("tools/make_certs.sh"), certs}, &output) == 2);
  output.clear();
  CHECK(RunProgram({InSources("tools/make_certs.sh"), certs, "not a host"}, &output) == 2);
  CHECK(absl::StrContains(output, "not a host is neither a host's name nor an address"));
}

TEST_CASE("gRPC's lines of failed handshakes become ours, and repeat themselves rarely", "[tls]") {
  const std::string start = "Handshake failed with fatal error SSL_ERROR_SSL: error:0A000086:SSL routines::";
  CHECK(HandshakeCause(start + "certificate verify failed.") ==
        "its certificate is not of the CA in --tls-ca, or is not valid now");
  CHECK(HandshakeCause(start + "wrong version number.") == "it does not speak TLS");
  CHECK(HandshakeCause(start + "peer did not return a certificate.") == "it shows no certificate");
  CHECK(HandshakeCause(start + "tlsv1 alert unknown ca.") ==
        "it does not take this server's certificate (tlsv1 alert unknown ca)");
  CHECK(HandshakeCause(start + "no shared cipher.") == "its TLS handshake failed (no shared cipher)");
  CHECK(HandshakeCause("Server shut down").empty());

  RepeatedLines lines;
  const absl::Time begin = absl::UnixEpoch();
  CHECK(lines.Tell("a", begin) == 1);
  for (int i = 0; i < 5; ++i) CHECK_FALSE(lines.Tell("a", begin + absl::Minutes(1)));
  CHECK(lines.Tell("a", begin + RepeatedLines::kAgain) == 6);
  CHECK_FALSE(lines.Tell("a", begin + RepeatedLines::kAgain + absl::Seconds(1)));
  for (size_t i = 1; i < RepeatedLines::kLinesMax; ++i) CHECK(lines.Tell(absl::StrCat("b", i), begin) == 1);
  CHECK_FALSE(lines.Tell("one too many", begin));
}

}  // namespace recon
