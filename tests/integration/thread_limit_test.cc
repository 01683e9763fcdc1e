// A server whose user may start no further thread.

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "catch2/catch.hpp"
#include "common/base/process.h"
#include "common/rpc/client_channel.h"
#include "common/rpc/control_client.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

// Programs of a user who has nothing else, in a directory that the user can reach.
class OtherUser {
 public:
  OtherUser() {
    REQUIRE(chmod(directory_.path().c_str(), 0777) == 0);
    for (const char* file : {"/recon-server", "/recon-worker", "/librecon_messages.so"}) {
      std::filesystem::copy_file(ProgramDirectory() + file, directory_.path() + file);
    }
  }

  std::unique_ptr<Process> Start(const std::string& program, std::vector<std::string> flags,
                                 const std::string& log) {
    flags.insert(flags.begin(), {"/usr/bin/setpriv", "--reuid", "64322", "--regid", "64322", "--clear-groups",
                                 directory_ / program});
    return std::make_unique<Process>(std::move(flags), directory_ / log);
  }
  std::unique_ptr<Process> StartWorker(const std::string& address, const std::string& name) {
    return Start("recon-worker",
                 {"--server", address, "--name", name, "--data", "clusters:4000,500,16,4", "--model",
                  "mlp:16-24-4", "--device", "cpu"},
                 name + ".log");
  }
  const TempDir& directory() const { return directory_; }

 private:
  const TempDir directory_;
};

// From now on its user may have so many threads. Only that user may say so in a container.
void AllowThreads(pid_t pid, int threads) {
  std::string output;
  const int code =
      RunProgram({"/usr/bin/setpriv", "--reuid", "64322", "--regid", "64322", "--clear-groups",
                  "/usr/bin/prlimit", "--pid", absl::StrCat(pid), absl::StrCat("--nproc=", threads, ":")},
                 &output);
  INFO(output);
  REQUIRE(code == 0);
}

// A server of that user, and workers of its.
class LimitedJob {
 public:
  LimitedJob() {
    StartServer("127.0.0.1:0");
    REQUIRE(Eventually(
        [&] { return absl::EndsWith(ReadWholeFile(data() + "/ADDRESS"), "\n") || !server_->running(); }));
    address_ = std::string(absl::StripSuffix(ReadWholeFile(data() + "/ADDRESS"), "\n"));
    StartWorkers({"first"});
    REQUIRE(Eventually([&] { return Status()->samples_completed() > 0; }));
  }

  // Again, if it has ended: where it was.
  void StartServer() { StartServer(address_); }
  void StartWorkers(const std::vector<std::string>& names) {
    for (const std::string& name : names) workers_.push_back(user_.StartWorker(address_, name));
  }
  // Threads are few, and somebody who has come lacks one. gRPC has threads of its own, and lacks them, too.
  bool RunOutOfThreads() {
    AllowThreads(server_->pid(), 1);
    StartWorkers({"second", "third", "fourth"});
    return Eventually([&] {
      return absl::StrContains(server_->output(),
                               "a connection by shared memory was refused: no further thread");
    });
  }
  absl::StatusOr<StatusReply> Status() const {
    return ControlClient(*ConnectTo(address_, {}), absl::Seconds(30)).Status();
  }
  bool AllTrain() const {
    const auto now = Status();
    return now.ok() && now->members_size() == static_cast<int>(workers_.size()) &&
           std::all_of(now->members().begin(), now->members().end(),
                       [](const auto& member) { return member.progress().steps() > 0; });
  }
  Process* server() { return server_.get(); }
  const std::vector<std::unique_ptr<Process>>& workers() const { return workers_; }

 private:
  std::string data() const { return user_.directory() / "data"; }
  void StartServer(const std::string& address) {
    server_ = user_.Start("recon-server",
                          {"--data", data(), "--listen", address, "--open", "--data-epochs", "100000",
                           "--split-samples", "200", "--snapshot-interval", "300ms"},
                          "server.log");
  }

  OtherUser user_;
  std::string address_;
  std::unique_ptr<Process> server_;
  std::vector<std::unique_ptr<Process>> workers_;
};

}  // namespace

TEST_CASE("a server that gets no further thread lives on, and its job goes on when there are threads again",
          "[thread_limit]") {
  if (geteuid() != 0) {
    WARN("SKIP: a user who may start no thread needs root");
    return;
  }
  LimitedJob job;
  const uint64_t generation = job.Status()->snapshot().generation();
  const bool refused = job.RunOutOfThreads();
  AllowThreads(job.server()->pid(), 1000);
  const bool trained =
      Eventually([&] { return job.AllTrain() || !job.server()->running(); }, absl::Seconds(120));
  {
    INFO(job.server()->output());
    CHECK(trained);
    REQUIRE(job.server()->running());
  }
  CHECK(refused);
  CHECK(Eventually([&] { return job.Status()->snapshot().generation() > generation + 1; }));
  for (const auto& worker : job.workers()) CHECK(worker->running());
}

TEST_CASE("a server that has lacked a thread ends in good order all the same, and nothing is lost",
          "[thread_limit]") {
  if (geteuid() != 0) {
    WARN("SKIP: a user who may start no thread needs root");
    return;
  }
  const bool has_them_again = GENERATE(true, false);
  CAPTURE(has_them_again);
  LimitedJob job;
  REQUIRE(job.RunOutOfThreads());
  if (has_them_again) {
    AllowThreads(job.server()->pid(), 1000);
    REQUIRE(Eventually([&] { return job.AllTrain() || !job.server()->running(); }, absl::Seconds(120)));
  }
  const auto before = job.Status();
  job.server()->Signal(SIGTERM);
  const int code = job.server()->Wait(absl::Seconds(60));
  INFO(job.server()->output());
  REQUIRE(code == 0);
  job.StartServer();
  REQUIRE(Eventually([&] { return job.AllTrain() || !job.server()->running(); }, absl::Seconds(120)));
  if (before.ok()) CHECK(job.Status()->samples_completed() >= before->samples_completed());
}

}  // namespace recon
