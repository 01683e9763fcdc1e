// Who may call what: each role, each call, over plain text, with tokens and over TLS.

#include <sys/stat.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "catch2/catch.hpp"
#include "common/base/process.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/sets_client.h"
#include "nlohmann/json.hpp"
#include "proto/cluster.grpc.pb.h"
#include "server/access/roles.h"
#include "server/process/certificate_series.h"
#include "server/rpc/joined_control_service.h"
#include "tests/integration/in_process_job.h"
#include "tests/integration/job_checks.h"
#include "tests/support/certificates.h"
#include "tests/support/process.h"

namespace recon {
namespace {

struct Call {
  std::string name;
  Role need;
  std::function<grpc::Status(Control::Stub*, grpc::ClientContext*)> make;
};

template <typename Request, typename Reply>
std::function<grpc::Status(Control::Stub*, grpc::ClientContext*)> Empty(
    grpc::Status (Control::Stub::*method)(grpc::ClientContext*, const Request&, Reply*)) {
  return [method](Control::Stub* stub, grpc::ClientContext* context) {
    Reply reply;
    return (stub->*method)(context, Request(), &reply);
  };
}

// All of the Control service, but for Drain(), which ends the server.
std::vector<Call> AllCalls() {
  return {
      {"Status", Role::kObserver, Empty(&Control::Stub::Status)},
      {"History", Role::kObserver, Empty(&Control::Stub::History)},
      {"Completions", Role::kObserver, Empty(&Control::Stub::Completions)},
      {"Register", Role::kWorker, Empty(&Control::Stub::Register)},
      {"Heartbeat", Role::kWorker, Empty(&Control::Stub::Heartbeat)},
      {"Acquire", Role::kWorker, Empty(&Control::Stub::Acquire)},
      {"Complete", Role::kWorker, Empty(&Control::Stub::Complete)},
      {"Rejoin", Role::kWorker, Empty(&Control::Stub::Rejoin)},
      {"Leave", Role::kWorker, Empty(&Control::Stub::Leave)},
      {"Snapshot", Role::kOperator, Empty(&Control::Stub::Snapshot)},
      {"SetPolicy", Role::kOperator, Empty(&Control::Stub::SetPolicy)},
      {"Rollback", Role::kOperator, Empty(&Control::Stub::Rollback)},
      {"Drain", Role::kOperator, Empty(&Control::Stub::Drain)},
  };
}

// Who calls: what it shows, and what it may do.
struct Who {
  std::string name;
  TlsFlags tls;
  std::string token;
  RoleSet roles;
};

// A caller without the role is denied by it, whatever it asks for; one with it is not.
void CheckCalls(const std::string& address, const Who& who) {
  INFO(who.name);
  const auto channel = *ConnectTo(address, who.tls);
  for (const Call& call : AllCalls()) {
    INFO(call.name);
    if (call.name == "Drain" && who.roles.Has(Role::kOperator)) continue;
    grpc::ClientContext context;
    Caller{"", who.token}.AddTo(&context);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    const grpc::Status status = call.make(Control::NewStub(channel).get(), &context);
    const bool by_role = status.error_code() == grpc::StatusCode::PERMISSION_DENIED &&
                         absl::StrContains(status.error_message(), call.name + " is for the role ");
    INFO(status.error_message());
    CHECK(by_role == !who.roles.Has(call.need));
    CHECK(status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED);
  }
}

grpc::Status Serve(const std::string& address, const Who& who) {
  const auto channel = *ConnectTo(address, who.tls);
  grpc::ClientContext context;
  Caller{"", who.token}.AddTo(&context);
  const auto stub = ShardServers::NewStub(channel);
  const auto stream = stub->Serve(&context);
  stream->WritesDone();
  ServerCommand command;
  while (stream->Read(&command)) {
  }
  return stream->Finish();
}

std::string TokenIn(const std::string& path) {
  std::string token = ReadWholeFile(path);
  return token.substr(0, token.size() - 1);
}

std::string OwnToken(const InProcessJob& job) { return TokenIn(job.flags.data + "/OPERATOR_TOKEN"); }

void WriteTokens(const std::string& path, const std::string& text) {
  WriteWholeFile(path, text);
  chmod(path.c_str(), 0600);
}

const std::map<Role, std::string> kTokens = {{Role::kObserver, "observer-0123456789"},
                                             {Role::kWorker, "worker-0123456789"},
                                             {Role::kServer, "server-0123456789"},
                                             {Role::kOperator, "operator-0123456789"}};

std::string AllTokens() {
  std::string text;
  for (const auto& [role, token] : kTokens) text += std::string(RoleName(role)) + " " + token + "\n";
  return text;
}

}  // namespace

TEST_CASE("an open head lets everybody train and look, and an operator shows the head's own token",
          "[access]") {
  InProcessJob job(-1);
  job.flags.access.open = true;
  job.flags.servers = GENERATE(1u, 2u);
  job.StartServer();
  const Who nobody = {"nobody", {}, "", {Role::kWorker, Role::kServer}};
  CHECK(Serve(job.flags.listen, nobody).ok() == (job.flags.servers == 2));
  if (job.flags.servers == 2) return;
  CheckCalls(job.flags.listen, nobody);
  CheckCalls(job.flags.listen,
             {"a wrong token", {}, "recon-operator-0123456789", {Role::kWorker, Role::kServer}});
  CheckCalls(job.flags.listen,
             {"the head's token", {}, OwnToken(job), {Role::kWorker, Role::kServer, Role::kOperator}});
}

TEST_CASE("over plain text who shows the job's token trains and looks, and an operator the head's own",
          "[access]") {
  InProcessJob job(-1);
  job.flags.servers = GENERATE(1u, 2u);
  job.StartServer();
  const std::string token = TokenIn(job.flags.data + "/JOB_TOKEN");
  const Who member = {"the job's token", {}, token, {Role::kWorker, Role::kServer}};
  for (const Who& who : {member, Who{"nobody", {}, "", {}}, Who{"half a token", {}, token.substr(0, 30), {}},
                         Who{"a longer token", {}, token + "0", {}},
                         Who{"a wrong token", {}, "recon-operator-0123456789", {}}}) {
    INFO(who.name);
    if (job.flags.servers == 1) {
      CheckCalls(job.flags.listen, who);
    } else {
      CHECK((Serve(job.flags.listen, who).error_code() == grpc::StatusCode::PERMISSION_DENIED) ==
            !who.roles.Has(Role::kServer));
    }
  }
  if (job.flags.servers == 2) return;
  CheckCalls(job.flags.listen, {"the head's token", {}, OwnToken(job), {Role::kOperator}});
  struct stat found {};
  REQUIRE(stat((job.flags.data + "/OPERATOR_TOKEN").c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0600);
  // Clients of the head's user find it.
  CHECK(absl::IsFailedPrecondition(job.Control().Snapshot().status()));  // Nobody has brought parameters.
  // Not if the address beside it is another one: who listens here may not be whose token it is.
  const std::string address = ReadWholeFile(job.flags.data + "/ADDRESS");
  WriteWholeFile(job.flags.data + "/ADDRESS", "127.0.0.1:1\n");
  CHECK(absl::IsPermissionDenied(job.Control().Snapshot().status()));
  WriteWholeFile(job.flags.data + "/ADDRESS", address);
  CHECK(absl::IsFailedPrecondition(job.Control().Snapshot().status()));
  std::filesystem::remove(job.flags.data + "/OPERATOR_TOKEN");
  CHECK(absl::IsPermissionDenied(job.Control().Snapshot().status()));
}

TEST_CASE("with a file of tokens each has its role, and who shows none has none", "[access]") {
  InProcessJob job(-1);
  job.flags.servers = GENERATE(1u, 2u);
  job.flags.access.tokens = job.directory / "tokens";
  WriteTokens(job.flags.access.tokens, AllTokens());
  job.StartServer();
  std::vector<Who> all = {{"nobody", {}, "", {}}, {"a wrong token", {}, "observer-0123456780", {}}};
  for (const auto& [role, token] : kTokens) all.push_back({RoleName(role), {}, token, {role}});
  for (const Who& who : all) {
    INFO(who.name);
    if (job.flags.servers == 1) {
      CheckCalls(job.flags.listen, who);
    } else {
      CHECK((Serve(job.flags.listen, who).error_code() == grpc::StatusCode::PERMISSION_DENIED) ==
            !who.roles.Has(Role::kServer));
    }
  }
  if (job.flags.servers == 2) return;
  // Who has none finds the head's own, on its machine.
  CHECK(ControlClient(*ConnectTo(job.flags.listen, {})).Status().ok());
  CHECK(AskForSets(job.flags.listen, {}).ok());
  // Programs take theirs from a file.
  const std::string token_file = job.directory / "token";
  const auto reconctl = [&](const std::string& verb, Role role) {
    WriteTokens(token_file, kTokens.at(role) + "\n");
    std::string output;
    return RunProgram(
        {ProgramDirectory() + "/reconctl", verb, "--server", job.flags.listen, "--token-file", token_file},
        &output);
  };
  CHECK(reconctl("status", Role::kObserver) == 0);
  CHECK(reconctl("history", Role::kObserver) == 0);
  CHECK(reconctl("sets", Role::kObserver) == 0);
  WorkerFlags worker = job.MakeWorker("one");
  CHECK(absl::IsPermissionDenied(job.RunWorkers({worker})[0]));
  WriteTokens(token_file, kTokens.at(Role::kWorker));
  worker.tls.token_file = token_file;
  CHECK(job.RunWorkers({worker})[0].ok());
  // A token that is taken out of the file is good no longer, one that is put in is; a broken file changes
  // nothing.
  const auto denied = [&](const std::string& token) {
    return absl::IsPermissionDenied(
        ControlClient(*ConnectTo(job.flags.listen, {}), ControlClient::kDeadline, {"", token})
            .Status()
            .status());
  };
  WriteTokens(job.flags.access.tokens, "observer another-0123456789\n");
  CHECK(Eventually([&] { return !denied("another-0123456789"); }));
  CHECK(denied(kTokens.at(Role::kObserver)));
  WriteTokens(job.flags.access.tokens, "observer third-0123456789\nobserver short\n");
  // It is looked at again: once it is whole, what is in it counts.
  CHECK(!denied("another-0123456789"));
  CHECK(denied("third-0123456789"));
  WriteTokens(job.flags.access.tokens, "observer third-0123456789\n");
  CHECK(Eventually([&] { return !denied("third-0123456789"); }));
  CHECK(denied("another-0123456789"));
}

TEST_CASE("over TLS a certificate's units are roles, or what --allow makes of its names", "[access]") {
  const Certificates authority("the job's");
  const TlsFlags host = authority.Client();
  InProcessJob job(-1);
  job.flags.tls = host;
  const bool rules = GENERATE(false, true);
  if (rules)
    job.flags.access.allow = {*RoleRule::Parse("operator=cn:op*"), *RoleRule::Parse("worker=ou:lab")};
  job.StartServer();
  const auto with = [&](const std::string& name, const std::string& subject, const RoleSet& roles) {
    CheckCalls(job.flags.listen, {subject, authority.Issue(name, subject), "", roles});
  };
  if (rules) {
    with("a", "/OU=operator/CN=x", {});
    with("b", "/OU=lab/CN=x", {Role::kWorker});
    with("c", "/OU=lab/CN=opal", {Role::kWorker, Role::kOperator});
  } else {
    with("a", "/OU=operator/CN=x", {Role::kOperator});
    with("b", "/OU=observer/CN=x", {Role::kObserver});
    with("c", "/OU=server/OU=worker/CN=x", {Role::kServer, Role::kWorker});
    with("d", "/CN=operator", {Role::kWorker, Role::kServer});
  }
  // The head's own token is as good here.
  CheckCalls(job.flags.listen,
             {"by token", authority.Issue("e", "/OU=observer/CN=x"), OwnToken(job), {Role::kOperator}});
}

TEST_CASE("a revoked certificate may do nothing, also one that is revoked while the head runs", "[access]") {
  const Certificates authority("the job's");
  const TlsFlags host = authority.Client();
  const TlsFlags stolen = authority.Issue("stolen", "/OU=operator/OU=worker/CN=stolen");
  const TlsFlags later = authority.Issue("later", "/OU=observer/CN=later");
  const TlsFlags good = authority.Issue("good", "/OU=observer/CN=good");
  InProcessJob job(-1);
  job.flags.tls = host;
  job.flags.tls.crl = authority.Revoke(stolen.cert);
  job.StartServer();
  CheckCalls(job.flags.listen, {"stolen", stolen, "", {}});
  // A token does not help.
  CheckCalls(job.flags.listen, {"stolen, with a token", stolen, OwnToken(job), {}});
  CheckCalls(job.flags.listen, {"later", later, "", {Role::kObserver}});
  CheckCalls(job.flags.listen, {"good", good, "", {Role::kObserver}});

  authority.Revoke(later.cert);
  ControlClient revoked(*ConnectTo(job.flags.listen, later));
  REQUIRE(Eventually([&] { return absl::IsPermissionDenied(revoked.Status().status()); }));
  CHECK(absl::StrContains(revoked.Status().status().message(), "the revoked certificate CN=later"));
  CheckCalls(job.flags.listen, {"good", good, "", {Role::kObserver}});

  // A list that is broken changes nothing.
  WriteWholeFile(authority.crl(), "-----BEGIN nothing");
  CHECK_FALSE(Eventually([&] { return revoked.Status().ok(); }, absl::Seconds(3)));
  CheckCalls(job.flags.listen, {"stolen", stolen, "", {}});
}

TEST_CASE(
    "who shows a certificate of a revoked CA may do nothing, whether it shows that CA or --tls-ca has it",
    "[access]") {
  const bool shown = GENERATE(true, false);
  const Certificates authority("the job's");
  const TlsFlags between = authority.IssueAuthority("between");
  const TlsFlags beside = authority.IssueAuthority("beside");
  TlsFlags of_between = authority.IssueBy(between, "a", "/OU=operator/CN=a");
  TlsFlags of_beside = authority.IssueBy(beside, "b", "/OU=observer/CN=b");
  InProcessJob job(-1);
  job.flags.tls = authority.Client();
  if (!shown) {
    const std::string all = authority.directory() / "all.pem";
    WriteWholeFile(all,
                   ReadWholeFile(authority.ca()) + ReadWholeFile(between.cert) + ReadWholeFile(beside.cert));
    job.flags.tls.ca = all;
    for (TlsFlags* one : {&of_between, &of_beside}) {
      one->cert = std::string(absl::StripSuffix(one->cert, ".chain.pem")) + ".pem";
      one->ca = all;
    }
  }
  job.flags.tls.crl = authority.Revoke(between.cert);
  job.StartServer();
  CheckCalls(job.flags.listen, {"of the revoked CA", of_between, "", {}});
  CheckCalls(job.flags.listen, {"of another", of_beside, "", {Role::kObserver}});
}

TEST_CASE("a server that knows no roles takes no connection of who shows a revoked certificate", "[access]") {
  const Certificates authority("the job's");
  TlsFlags host = authority.Client();
  const TlsFlags stolen = authority.Issue("stolen", "/CN=stolen");
  const TlsFlags later = authority.Issue("later", "/CN=later");
  const TlsFlags good = authority.Issue("good", "/CN=good");
  host.crl = authority.Revoke(stolen.cert);
  Connections connections_there;
  JoinedControlService service("head:7070", &connections_there);
  const auto server = *RpcServer::Start("--listen", "127.0.0.1:0", host, {&service}, &connections_there);
  int connections = 0;
  // It says whom to ask; who is not connected does not hear that.
  const auto is_connected = [&](const TlsFlags& client) {
    const absl::Status asked =
        ControlClient(*ConnectTo(server->address(), client, ++connections)).Status().status();
    INFO(asked);
    CHECK((absl::IsFailedPrecondition(asked) || absl::IsUnavailable(asked)));
    return absl::IsFailedPrecondition(asked);
  };
  CHECK(Eventually([&] { return is_connected(good); }));
  CHECK_FALSE(is_connected(stolen));
  CHECK(is_connected(later));
  authority.Revoke(later.cert);
  CHECK(Eventually([&] { return !is_connected(later); }));
  CHECK(is_connected(good));
}

TEST_CASE("a list of revoked certificates that is none, or another CA's, is refused at the start",
          "[access]") {
  const Certificates ours("the job's"), theirs("another's");
  const TlsFlags host = ours.Client();
  InProcessJob job(-1);
  job.flags.tls = host;
  const auto refused = [&](const std::string& file) {
    job.flags.tls.crl = file;
    return std::string(ReconServer::Start(job.flags).status().message());
  };
  CHECK_THAT(refused(theirs.Revoke(theirs.cert())),
             Catch::Matchers::Contains("the list of another's is not signed by a CA of --tls-ca"));
  CHECK_THAT(refused(ours.cert()), Catch::Matchers::Contains("has no list of revoked certificates"));
  CHECK_THAT(refused(ours.directory() / "none.pem"), Catch::Matchers::Contains("--tls-crl"));
}

TEST_CASE("where names go by certificates a worker has its own, and no other's", "[access]") {
  const Certificates authority("the job's");
  const TlsFlags host = authority.Client();
  InProcessJob job(-1);
  job.flags.tls = host;
  job.flags.access.names_by_certificate = true;
  job.StartServer();
  const TlsFlags lab = authority.Issue("lab", "/OU=worker/CN=lab");
  ControlClient client(*ConnectTo(job.flags.listen, lab));
  const auto register_as = [&](const std::string& name) {
    RegisterRequest request;
    request.set_name(name);
    return client.Register(request).status();
  };
  for (const std::string name : {"other", "labs", "", "la", "other-lab"}) {
    CAPTURE(name);
    const absl::Status status = register_as(name);
    CHECK(absl::IsPermissionDenied(status));
    CHECK_THAT(std::string(status.message()), Catch::Matchers::Contains("--name lab, or lab-<anything>"));
  }
  for (const std::string name : {"lab", "lab-1"}) {
    CAPTURE(name);  // Refused for what else is missing in the request.
    CHECK_THAT(std::string(register_as(name).message()),
               !Catch::Matchers::Contains("names go by certificates"));
  }
}

TEST_CASE("how long certificates are valid still is a series", "[access]") {
  const Certificates authority("the job's");  // Its certificates are of two days.
  const auto families = CertificateSeries(authority.cert(), authority.ca()).Collect();
  REQUIRE(families.size() == 1);
  REQUIRE(families[0].metric.size() == 2);
  for (const auto& metric : families[0].metric) {
    CHECK(metric.gauge.value > 1.9);
    CHECK(metric.gauge.value < 2.1);
  }
  CHECK(CertificateSeries("/absent", "/absent").Collect()[0].metric.empty());
}

TEST_CASE("the audit log has who came, what was done and what was denied, and no token", "[access]") {
  InProcessJob job(-1);
  job.flags.job.set_data_epochs(1);
  job.StartServer();
  CHECK(job.RunWorkers({job.MakeWorker("one")})[0].ok());
  PolicySettings settings;
  settings.set_sync("bsp");
  const absl::StatusOr<SetPolicyReply> set = job.Control().SetPolicy(settings);
  Who nobody = {"", {}, "recon-operator-not-the-one-0123456789", {}};
  grpc::ClientContext context;
  Caller{"", nobody.token}.AddTo(&context);
  DrainReply reply;
  CHECK(Control::NewStub(*ConnectTo(job.flags.listen, {}))
            ->Drain(&context, DrainRequest(), &reply)
            .error_code() == grpc::StatusCode::PERMISSION_DENIED);
  const std::string path = job.flags.data + "/AUDIT";
  std::map<std::string, nlohmann::json> last;
  REQUIRE(Eventually([&] {
    for (const absl::string_view line : absl::StrSplit(ReadWholeFile(path), '\n', absl::SkipEmpty())) {
      const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (json.is_object()) last[json["call"]] = json;
    }
    return last.count("Drain") > 0 && last.count("SetPolicy") > 0;
  }));
  CHECK(last["Register"]["detail"] == "one");
  CHECK(last["Register"]["result"] == "ok");
  CHECK(last["SetPolicy"]["detail"] == "--sync bsp");
  CHECK(last["SetPolicy"]["who"] == "token");
  CHECK(last["SetPolicy"]["result"] == (set.ok() ? "ok" : std::string(set.status().message())));
  CHECK(absl::StartsWith(last["Drain"]["from"].get<std::string>(), "127.0.0.1:"));
  CHECK(last["Drain"]["who"] == "a token that nobody has");
  CHECK(last["Drain"]["result"] == "denied: needs operator");
  CHECK(!absl::StrContains(ReadWholeFile(path), "recon-operator-"));
}

TEST_CASE("what is wrong with tokens is said before the server listens", "[access]") {
  InProcessJob job(-1);
  job.flags.access.tokens = job.directory / "tokens";
  const auto error = [&] {
    auto started = ReconServer::Start(job.flags);
    return started.ok() ? "it has started" : std::string(started.status().message());
  };
  CHECK(absl::StrContains(error(), "tokens: cannot be read"));
  WriteTokens(job.flags.access.tokens, "worker short");
  CHECK(absl::StrContains(error(), "tokens: line 1: a token of 5 characters"));
  WriteTokens(job.flags.access.tokens, AllTokens());
  chmod(job.flags.access.tokens.c_str(), 0644);
  CHECK(absl::StrContains(error(), "all users of this machine can read or write it: chmod 600"));
}

}  // namespace recon
