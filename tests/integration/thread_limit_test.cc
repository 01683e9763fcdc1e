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

}  // namespace

TEST_CASE("a server that gets no further thread lives on, and its job goes on when there are threads again",
          "[thread_limit]") {
  if (geteuid() != 0) {
    WARN("SKIP: a user who may start no thread needs root");
    return;
  }
  OtherUser user;
  const std::string data = user.directory() / "data";
  auto server = user.Start("recon-server",
                           {
                               "--data",
                               data,
                               "--listen",
                               "127.0.0.1:0",
                               "--open",
                               "--data-epochs",
                               "100000",
                               "--split-samples",
                               "200",
                               "--snapshot-interval",
                               "300ms",
                           },
                           "server.log");
  REQUIRE(Eventually(
      [&] { return absl::EndsWith(ReadWholeFile(data + "/ADDRESS"), "\n") || !server->running(); }));
  const std::string address(absl::StripSuffix(ReadWholeFile(data + "/ADDRESS"), "\n"));
  const auto status = [&] { return ControlClient(*ConnectTo(address, {}), absl::Seconds(30)).Status(); };
  auto first = user.StartWorker(address, "first");
  REQUIRE(Eventually([&] { return status()->samples_completed() > 0; }));
  AllowThreads(server->pid(), 1);
  const uint64_t generation = status()->snapshot().generation();
  std::vector<std::unique_ptr<Process>> others;
  for (const char* name : {"second", "third", "fourth"}) others.push_back(user.StartWorker(address, name));
  const auto all_train = [&] {
    const auto now = status();
    return now.ok() && now->members_size() == 4 &&
           std::all_of(now->members().begin(), now->members().end(),
                       [](const auto& member) { return member.progress().steps() > 0; });
  };
  // gRPC has threads of its own, and goes on when it gets them.
  const bool refused = Eventually([&] {
    return absl::StrContains(server->output(),
                             "a connection by shared memory was refused: no further thread");
  });
  AllowThreads(server->pid(), 1000);
  const bool trained = Eventually([&] { return all_train() || !server->running(); }, absl::Seconds(120));
  {
    INFO(server->output());
    CHECK(trained);
    REQUIRE(server->running());
  }
  CHECK(refused);
  CHECK(Eventually([&] { return status()->snapshot().generation() > generation + 1; }));
  CHECK(first->running());
  for (const auto& other : others) CHECK(other->running());
  // It is killed by Process: gRPC, which has lacked a thread, may wait for it at the end.
}

}  // namespace recon
