// A notice to end that comes while a process starts.

#include <csignal>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/integration/servers_job.h"
#include "tests/support/http_test_server.h"
#include "tests/support/listening_socket.h"

namespace recon {
namespace {

// Of one that hears nothing they would wait for much longer.
constexpr absl::Duration kEnds = absl::Seconds(40);
constexpr char kPatience[] = "RECON_STORE_PATIENCE=1h";

// For a program that hangs where it opens a path with this word in it.
std::vector<std::string> HangsAt(const std::string& word) {
  return {absl::StrCat("LD_PRELOAD=", ProgramDirectory(), "/other_machine.so"),
          absl::StrCat("MACHINE_STALLS=", word), "ASAN_OPTIONS=verify_asan_link_order=0", kPatience};
}

// That SIGTERM ends it, once it has begun to run.
void EndsBySignal(Process* process) {
  REQUIRE(Eventually([&] { return absl::StrContains(process->output(), "this machine: "); }));
  CHECK(process->running());
  process->Signal(SIGTERM);
  const int code = process->Wait(kEnds);
  INFO(process->output());
  CHECK(code == 0);
  CHECK(absl::StrContains(process->output(), "SIGTERM"));
}

// Takes requests and answers none, while it lives.
class SilentHttp {
 public:
  ~SilentHttp() { end_.Notify(); }
  const std::string& address() const { return http_.address(); }
  bool asked() { return asked_.HasBeenNotified(); }

 private:
  Notification asked_, end_;
  HttpTestServer http_{[this](const HttpTestServer::Request&) {
    if (!asked_.HasBeenNotified()) asked_.Notify();
    end_.WaitForNotification();
    return HttpTestServer::Response{200, "", {}, /*drop=*/true};
  }};
};

}  // namespace

TEST_CASE("SIGTERM ends a server that waits for a silent store at its start", "[start]") {
  const TempDir directory;
  const auto ends = [&](const std::string& url, SilentHttp* store) {
    Process server(
        {"recon-server", "--data", directory / "data", "--listen", "127.0.0.1:0", "--snapshot-dir", url},
        directory / "log",
        {kPatience, "AWS_ACCESS_KEY_ID=me", "AWS_SECRET_ACCESS_KEY=mine",
         "AWS_ENDPOINT_URL=http://" + store->address()});
    REQUIRE(Eventually([&] { return store->asked(); }));
    EndsBySignal(&server);
  };
  SECTION("s3") {
    SilentHttp store;
    ends("s3://bucket/job", &store);
  }
  SECTION("webhdfs") {
    SilentHttp store;
    ends("webhdfs://" + store.address() + "/job", &store);
  }
}

TEST_CASE("SIGTERM ends a server whose disk hangs at its start", "[start]") {
  for (const char* file : {"LOCK", "control/", "/log/", "ADDRESS"}) {
    INFO(file);
    const TempDir directory;
    Process server({"recon-server", "--data", directory / "data", "--listen", "127.0.0.1:0"},
                   directory / "log", HangsAt((directory / "data/") + file));
    EndsBySignal(&server);
  }
}

TEST_CASE("SIGTERM ends a worker that waits for its data, or for a silent server, at its start", "[start]") {
  const TempDir directory;
  WriteWholeFile(directory / "shapes", "weight 4 4\n");
  Process reads(
      {"recon-worker", "--model", absl::StrCat("synthetic:", directory / "shapes"), "--device", "cpu"},
      directory / "reads.log", HangsAt(directory / "shapes"));
  EndsBySignal(&reads);
  const ListeningSocket silent;
  Process asks({"recon-worker", "--server", silent.address(), "--data", "clusters:4000,500,16,4", "--device",
                "cpu", "--model", "mlp:16-24-4"},
               directory / "asks.log");
  EndsBySignal(&asks);
}

TEST_CASE("SIGTERM ends a joined server that waits for its place, or takes it up from a disk that hangs",
          "[start]") {
  ServersJob job(2, {"--data-epochs", "1"});
  REQUIRE(job.Start(0));
  REQUIRE(job.Start(1));
  EndsBySignal(&job.process(1));
  REQUIRE(job.Start(1, HangsAt(job.DataOf(1) + "/log")));
  auto worker = job.StartWorker("one");
  const auto recovers = [&] {
    const auto status = job.Status();
    return status.ok() && status->servers_size() == 1 && status->servers(0).state() == SERVER_RECOVERING;
  };
  CHECK(Eventually(recovers));
  EndsBySignal(&job.process(1));
}

}  // namespace recon
