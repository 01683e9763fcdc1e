// The token of a job over plain text: who finds it, who has to be given it, and who is sent away without it.

#include <sys/stat.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "common/base/process.h"
#include "common/rpc/sets_client.h"
#include "nlohmann/json.hpp"
#include "tests/integration/in_process_job.h"
#include "tests/integration/job_checks.h"
#include "tests/support/process.h"
#include "worker/collective/group.h"

namespace recon {
namespace {

using Catch::Matchers::Contains;

std::string JobTokenOf(const InProcessJob& job) {
  const std::string text = ReadWholeFile(job.flags.data + "/JOB_TOKEN");
  return text.substr(0, text.find('\n'));
}

// The environment of this process has the variable as long as this lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* const name_;
};

absl::Status StatusWith(const InProcessJob& job, const std::string& token) {
  Caller caller;
  caller.token = token;
  return ControlClient(*ConnectTo(job.flags.listen, {}), absl::Seconds(30), caller).Status().status();
}

std::vector<nlohmann::json> Audit(const InProcessJob& job) {
  std::vector<nlohmann::json> lines;
  for (const absl::string_view line :
       absl::StrSplit(ReadWholeFile(job.flags.data + "/AUDIT"), '\n', absl::SkipEmpty())) {
    auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) lines.push_back(std::move(json));
  }
  return lines;
}

std::string WhyNot(const ServerFlags& flags) {
  const auto started = ReconServer::Start(flags);
  return started.ok() ? "it has started" : std::string(started.status().message());
}

Group::Options MemberOf(const InProcessJob& job) {
  Group::Options options;
  options.server = job.flags.listen;
  options.set = "one";
  options.member = "me";
  return options;
}

}  // namespace

TEST_CASE("a job's token is its user's alone, and the same after a restart", "[access]") {
  InProcessJob job(-1);
  job.StartServer();
  struct stat found {};
  const std::string path = job.flags.data + "/JOB_TOKEN";
  REQUIRE(stat(path.c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0600);
  const std::string token = JobTokenOf(job);
  CHECK(token.size() > 64);
  CHECK(StatusWith(job, token).ok());
  job.StopServer();
  job.StartServer();
  CHECK(JobTokenOf(job) == token);
  CHECK(StatusWith(job, token).ok());
  job.StopServer();
  std::filesystem::remove(path);
  job.StartServer();
  CHECK(JobTokenOf(job) != token);
  CHECK(absl::IsPermissionDenied(StatusWith(job, token)));
}

TEST_CASE("a job's token that others can read, or that is none, ends the head's start", "[access]") {
  InProcessJob job(-1);
  job.StartServer();
  job.StopServer();
  const std::string path = job.flags.data + "/JOB_TOKEN";
  chmod(path.c_str(), 0644);
  CHECK_THAT(WhyNot(job.flags), Contains("JOB_TOKEN") && Contains("chmod 600"));
  chmod(path.c_str(), 0600);
  WriteWholeFile(path, "short\n");
  CHECK_THAT(WhyNot(job.flags), Contains("JOB_TOKEN") && Contains("a token of 5 characters"));
}

TEST_CASE("a token that is given is the job's, and who was given another one is denied", "[access]") {
  InProcessJob job(-1);
  const std::string token = "given-0123456789abcdef";
  {
    const Variable variable("RECON_TOKEN", token);
    job.StartServer();
  }
  CHECK(JobTokenOf(job) == token);
  CHECK(StatusWith(job, token).ok());
  CHECK(absl::IsPermissionDenied(StatusWith(job, "given-0123456789abcdee")));
  job.StopServer();
  const Variable variable("RECON_TOKEN", "a token of words");
  CHECK_THAT(WhyNot(job.flags), Contains("RECON_TOKEN is no token") && !Contains("words"));
}

TEST_CASE("processes of the head's user on its machine find the job's token by themselves", "[access]") {
  InProcessJob job(-1);
  job.flags.job.set_data_epochs(1);
  job.StartServer();
  CHECK(job.RunWorkers({job.MakeWorker("one")})[0].ok());
  CHECK(AskForSets(job.flags.listen, {}).ok());
  const auto group = Group::Join(MemberOf(job));
  REQUIRE(group.ok());
  REQUIRE((*group)->AwaitBegunFor(absl::Minutes(1)));
  CHECK((*group)->status().ok());
  CHECK((*group)->epoch()->wants_secret());
  CHECK((*group)->Sets().ok());
  std::string output;
  CHECK(RunProgram({ProgramDirectory() + "/reconctl", "status", "--server", job.flags.listen}, &output) == 0);
  // What they looked for is no denial, and who they are is on record.
  REQUIRE(Eventually([&] { return Audit(job).size() >= 2; }));
  for (const nlohmann::json& line : Audit(job)) {
    INFO(line.dump());
    CHECK(line["result"] == "ok");
    CHECK(line["who"] == "token");
    CHECK((line["call"] == "Register" || line["call"] == "Join of a set"));
    if (line["call"] == "Join of a set") {
      CHECK(line["detail"] == "set 'one', member 'me', rank 0 of 1");
      CHECK(absl::StartsWith(line["from"].get<std::string>(), "127.0.0.1:"));
    }
  }
}

TEST_CASE("who looks for a token and does not find it is in the audit log, and a flood of such is counted",
          "[access]") {
  InProcessJob job(-1);
  job.StartServer();
  Caller worker;
  worker.token = JobTokenOf(job);
  worker.token_is_ambient = true;
  // Another process on this port would be told nothing.
  WriteWholeFile(job.flags.data + "/ADDRESS", "127.0.0.1:1\n");
  CHECK(absl::IsPermissionDenied(StatusWith(job, "")));
  ControlClient looks(*ConnectTo(job.flags.listen, {}), absl::Seconds(30), worker);
  CHECK(absl::IsPermissionDenied(looks.SetPolicy(PolicySettings()).status()));
  const auto has = [&](const std::string& call, const std::string& who, const std::string& result) {
    for (const nlohmann::json& line : Audit(job)) {
      if (line["call"] == call && line["who"] == who && line["result"] == result) return true;
    }
    return false;
  };
  CHECK(Eventually([&] { return has("Status", "nothing", "denied: needs observer"); }));
  CHECK(Eventually([&] { return has("SetPolicy", "token", "denied: needs operator"); }));
  const size_t before = Audit(job).size();
  const absl::Time began = Now();
  constexpr int kFlood = 400;  // More than may wait for their lines.
  for (int i = 0; i < kFlood; ++i) CHECK(absl::IsPermissionDenied(StatusWith(job, "")));
  uint64_t counted = 0;
  size_t lines = 0;
  CHECK(Eventually([&] {
    (void)StatusWith(job, "");
    counted = lines = 0;
    for (const nlohmann::json& line : Audit(job)) {
      ++lines;
      uint64_t others = 0;
      const std::string detail = line.value("detail", "");
      if (absl::SimpleAtoi(detail.substr(0, detail.find(' ')), &others)) counted += others;
    }
    return counted + lines >= before + kFlood;
  }));
  CHECK(static_cast<double>(lines - before) <= 5 * (absl::ToDoubleSeconds(Now() - began) + 2));
  CHECK(counted > 0);
}

TEST_CASE("who does not find the job's token is told in one line what is missing and where it is",
          "[access]") {
  InProcessJob job(-1);
  job.StartServer();
  const std::string token = JobTokenOf(job);
  // Another process on this port would be told nothing.
  WriteWholeFile(job.flags.data + "/ADDRESS", "127.0.0.1:1\n");
  const absl::Status denied = StatusWith(job, "");
  const auto says_how = [&](const absl::Status& status) {
    const std::string text(status.message());
    INFO(text);
    for (const std::string part :
         {"the job's token", "--token-file", "RECON_TOKEN_FILE", "RECON_TOKEN)", "JOB_TOKEN"}) {
      CHECK_THAT(text, Contains(part));
    }
    CHECK_THAT(text, !Contains("\n") && !Contains(token));
    return absl::IsPermissionDenied(status);
  };
  CHECK(says_how(denied));
  {
    const auto group = Group::Join(MemberOf(job));
    REQUIRE(group.ok());
    REQUIRE((*group)->AwaitBegunFor(absl::Minutes(1)));
    CHECK(says_how((*group)->status()));
  }
  const absl::Status worker = job.RunWorkers({job.MakeWorker("one")})[0];
  CHECK(says_how(worker));
  // With the token in the environment all of them come in.
  const Variable variable("RECON_TOKEN", token);
  CHECK(ControlClient(*ConnectTo(job.flags.listen, {}), absl::Seconds(30), *CallerFor({})).Status().ok());
  const auto group = Group::Join(MemberOf(job));
  REQUIRE(group.ok());
  REQUIRE((*group)->AwaitBegunFor(absl::Minutes(1)));
  CHECK((*group)->status().ok());
}

TEST_CASE("a token that nobody has is on record each time", "[access]") {
  InProcessJob job(-1);
  job.StartServer();
  CHECK(absl::IsPermissionDenied(StatusWith(job, "recon-job-0123456789")));
  REQUIRE(Eventually([&] { return !Audit(job).empty(); }));
  const nlohmann::json line = Audit(job)[0];
  CHECK(line["who"] == "a token that nobody has");
  CHECK(line["result"] == "denied: needs observer");
}

TEST_CASE("members of an open head's sets hear that it wants no secret", "[access]") {
  InProcessJob job(-1);
  job.flags.access.open = true;
  job.StartServer();
  CHECK_FALSE(std::filesystem::exists(job.flags.data + "/JOB_TOKEN"));
  const auto group = Group::Join(MemberOf(job));
  REQUIRE(group.ok());
  REQUIRE((*group)->AwaitBegunFor(absl::Minutes(1)));
  REQUIRE((*group)->status().ok());
  CHECK_FALSE((*group)->epoch()->wants_secret());
}

}  // namespace recon
