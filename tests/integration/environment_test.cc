// What machines, containers and schedulers do to processes.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/process.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/integration/servers_job.h"

namespace recon {
namespace {

std::vector<std::string> JobFlags(int epochs) {
  return {"--data-epochs", absl::StrCat(epochs), "--snapshot-interval", "1h"};
}

// For a program whose machine lacks something, or whose clock is off by what the file `clock` says.
std::vector<std::string> Machine(const std::string& lacks, const std::string& clock = "") {
  return {absl::StrCat("LD_PRELOAD=", ProgramDirectory(), "/other_machine.so"),
          absl::StrCat("MACHINE_LACKS=", lacks), absl::StrCat("MACHINE_CLOCK=", clock),
          "ASAN_OPTIONS=verify_asan_link_order=0"};
}

// Runs a server that is refused; what it says.
std::string RefusedOn(const std::vector<std::string>& machine) {
  const TempDir directory;
  Process server({"recon-server", "--data", directory / "data", "--listen", "127.0.0.1:0"}, directory / "log",
                 machine);
  CHECK(server.Wait(absl::Seconds(30)) == 1);
  return server.output();
}

}  // namespace

TEST_CASE("no proxy of the user's stands between the processes of a job", "[environment]") {
  std::vector<std::string> proxies = {"no_proxy=", "no_grpc_proxy="};
  for (const char* name :
       {"http_proxy", "https_proxy", "grpc_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"}) {
    proxies.push_back(absl::StrCat(name, "=http://127.0.0.1:9"));
  }
  ServersJob job(2, JobFlags(1));
  REQUIRE(job.Start(0, proxies));
  REQUIRE(job.Start(1, proxies));
  auto worker = job.StartWorker("two", {}, proxies);
  CHECK(job.Finished());
  CHECK(worker->Wait(absl::Seconds(30)) == 0);
  Process status({"reconctl", "status", "--server", job.address()}, job.directory() / "status.log", proxies);
  CHECK(status.Wait(absl::Seconds(30)) == 0);
}

TEST_CASE("every signal by which a scheduler says that the end is near drains worker and server",
          "[environment]") {
  for (const int notice : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU}) {
    INFO("signal " << notice);
    ProcessJob job(JobFlags(100'000));
    REQUIRE(job.StartServer());
    auto worker = job.StartWorker("one");
    REQUIRE(job.SamplesReach(1000));
    worker->Signal(notice);
    CHECK(worker->Wait(absl::Seconds(30)) == 0);
    CHECK(absl::StrContains(job.ServerLog(), "worker one left (stopped)"));
    job.server().Signal(notice);
    CHECK(job.server().Wait(absl::Seconds(30)) == 0);
    CHECK(absl::StrContains(job.ServerLog(), "drained"));
  }
}

TEST_CASE("a second notice right after the first does not end the drain's snapshot", "[environment]") {
  ProcessJob job(JobFlags(100'000));
  REQUIRE(job.StartServer());
  auto worker = job.StartWorker("one");
  REQUIRE(job.SamplesReach(1000));
  job.server().Signal(SIGUSR1);
  REQUIRE(Eventually([&] { return absl::StrContains(job.ServerLog(), "draining"); }));
  job.server().Signal(SIGTERM);
  CHECK(job.server().Wait(absl::Seconds(30)) == 0);
  const auto store = *LocalStore::Open(job.snapshots(), /*writer=*/false);
  const SnapshotReader reader(store.get());
  CHECK(reader.ReadManifest(reader.List()->back())->reason() == "drain");
}

TEST_CASE("a second notice after the grace ends a worker that hangs, with a line that says so",
          "[environment]") {
  ProcessJob job(JobFlags(1));
  REQUIRE(job.StartServer());
  auto worker = job.StartWorker("one", {"--model", "mlp:16-24-4", "--step-ms", "3600000"});
  // It computes: it has had a lease for a while.
  absl::Time since = Now();
  REQUIRE(Eventually([&] {
    const auto status = job.Status();
    if (!status.ok() || status->members_size() == 0 || status->members(0).splits() == 0) since = Now();
    return Now() - since > absl::Seconds(1);
  }));
  worker->Signal(SIGTERM);
  const int64_t first = MonotonicNanos();
  REQUIRE(Eventually([&] {
    worker->Signal(SIGTERM);
    return !worker->running();
  }));
  CHECK(MonotonicNanos() - first >= 5'000'000'000);
  CHECK(worker->Wait(absl::ZeroDuration()) == 128 + SIGTERM);
  CHECK(absl::StrContains(worker->output(), "another signal while this process was ending"));
}

TEST_CASE(
    "two workers of one name that are alive: the newer one says so, and waits until the older has ended",
    "[environment]") {
  ProcessJob job(JobFlags(100'000));
  REQUIRE(job.StartServer());
  auto older = job.StartWorker("one");
  REQUIRE(job.SamplesReach(1000));
  const std::string file = job.directory() / "newer.log";
  Process newer({"recon-worker", "--server", job.address(), "--name", "one", "--data",
                 "clusters:4000,500,16,4", "--device", "cpu", "--model", "mlp:16-24-4"},
                file);
  REQUIRE(Eventually([&] {
    return absl::StrContains(ReadWholeFile(file), "the name one is that of the worker at 127.0.0.1:");
  }));
  CHECK(absl::StrContains(job.ServerLog(), "worker one: the process at 127.0.0.1:"));
  CHECK(absl::StrContains(job.ServerLog(), " waits for the name of the one at 127.0.0.1:"));
  CHECK(
      Eventually([&] { return absl::StrContains(older->output(), " waits for this worker's name, one:"); }));
  CHECK(job.SamplesReach(job.Status()->samples_completed() + 4000));
  CHECK(job.Status()->members_size() == 1);
  CHECK(older->running());
  older->Kill();
  CHECK(Eventually([&] { return absl::StrContains(ReadWholeFile(file), "registered as worker"); }));
  CHECK(job.SamplesReach(job.Status()->samples_completed() + 1000));
  CHECK(newer.running());
}

TEST_CASE("workers without a name have different ones, also where host and process number are the same",
          "[environment]") {
  if (geteuid() != 0) {
    WARN("SKIP: namespaces of process numbers need root");
    return;
  }
  ProcessJob job(JobFlags(100'000));
  REQUIRE(job.StartServer());
  std::vector<std::unique_ptr<Process>> workers;
  for (const char* log : {"a.log", "b.log"}) {
    workers.push_back(std::make_unique<Process>(
        std::vector<std::string>{"/usr/bin/unshare", "-pf", "--kill-child",
                                 ProgramDirectory() + "/recon-worker", "--server", job.address(), "--data",
                                 "clusters:4000,500,16,4", "--model", "mlp:16-24-4", "--device", "cpu"},
        job.directory() / log));
  }
  REQUIRE(Eventually([&] {
    const auto status = job.Status();
    return status.ok() && status->members_size() == 2 && status->samples_completed() > 0;
  }));
  const StatusReply status = *job.Status();
  for (const MemberStatus& member : status.members()) CHECK(member.state() != MEMBER_GONE);
  CHECK(workers[0]->running());
  CHECK(workers[1]->running());
}

TEST_CASE("a clock that is set while a job runs changes nothing but what is shown", "[environment]") {
  ProcessJob job({"--data-epochs", "100000", "--snapshot-interval", "200ms"});
  const std::string clock = job.directory() / "clock";
  WriteWholeFile(clock, "0");
  REQUIRE(job.StartServer(Machine("", clock)));
  auto one = job.StartWorker("one", {}, Machine("", clock));
  auto two = job.StartWorker("two", {}, Machine("", clock));
  REQUIRE(job.SamplesReach(4000));
  for (const char* off : {"7200", "-86400", "0"}) {
    INFO("off by " << off);
    WriteWholeFile(clock, off);
    const StatusReply before = *job.Status();
    CHECK(job.SamplesReach(before.samples_completed() + 4000, absl::Seconds(20)));
    CHECK(Eventually([&] { return job.Status()->snapshot().published() > before.snapshot().published() + 1; },
                     absl::Seconds(20)));
    // Stored is the time of day.
    const absl::Time shown = absl::FromUnixMillis(job.Status()->snapshot().unix_ms());
    CHECK(absl::AbsDuration(shown - (WallNow() + absl::Seconds(std::stoi(off)))) < absl::Minutes(1));
  }
  CHECK_FALSE(absl::StrContains(job.ServerLog(), "evicted"));
  CHECK_FALSE(absl::StrContains(job.ServerLog(), "expired"));
  one->Signal(SIGTERM);
  CHECK(one->Wait(absl::Seconds(30)) == 0);
}

TEST_CASE("snapshots are published where there are no hard links, and not where one could replace another",
          "[environment]") {
  ProcessJob job(JobFlags(1));
  REQUIRE(job.StartServer(Machine("links")));
  CHECK(absl::StrContains(job.ServerLog(), "has no hard links: snapshots are published by renaming"));
  auto worker = job.StartWorker("one");
  REQUIRE(job.Finished());
  job.server().Signal(SIGTERM);
  CHECK(job.server().Wait(absl::Seconds(30)) == 0);
  std::string output;
  CHECK(RunProgram({"reconctl", "snapshot", "verify", job.snapshots()}, &output) == 0);

  CHECK(absl::StrContains(RefusedOn(Machine("links noreplace")), "two servers could spoil each other's"));
}

TEST_CASE("a data directory is locked where there is no flock, and refused where there are no locks at all",
          "[environment]") {
  ProcessJob job(JobFlags(1));
  REQUIRE(job.StartServer(Machine("flock")));
  CHECK(absl::StrContains(job.ServerLog(), "has no flock: its LOCK is locked by fcntl"));
  const TempDir directory;
  Process second({"recon-server", "--data", job.data(), "--listen", "127.0.0.1:0"}, directory / "log",
                 Machine("flock"));
  CHECK(second.Wait(absl::Seconds(30)) == 1);
  CHECK(absl::StrContains(second.output(), absl::StrCat("is in use by process ", job.server().pid())));

  CHECK(absl::StrContains(RefusedOn(Machine("locks")), "cannot be locked"));
}

TEST_CASE("a head that comes back at another address of its name is found by its workers", "[environment]") {
  if (geteuid() != 0) {
    WARN("SKIP: a table of hosts of one's own needs root");
    return;
  }
  const TempDir directory;
  const std::string hosts = directory / "hosts";
  const auto name_is_at = [&](const std::string& address) {
    WriteWholeFile(hosts, address + " head.recon.test\n");
  };
  name_is_at("127.0.0.2");
  const std::string data = directory / "data";
  const auto start = [&](const std::string& address) {
    unlink((data + "/ADDRESS").c_str());
    auto server =
        std::make_unique<Process>(std::vector<std::string>{"recon-server", "--data", data, "--listen",
                                                           address, "--data-epochs", "100000"},
                                  directory / "server.log");
    CHECK(Eventually([&] { return !ReadWholeFile(data + "/ADDRESS").empty(); }));
    return server;
  };
  auto server = start("127.0.0.2:0");
  const std::string address(absl::StripSuffix(ReadWholeFile(data + "/ADDRESS"), "\n"));
  const std::string port = address.substr(address.rfind(':'));
  Process worker({"/usr/bin/unshare", "-m", "--kill-child", "/bin/sh", "-c",
                  absl::StrCat("mount --bind ", hosts, " /etc/hosts && exec ", ProgramDirectory(),
                               "/recon-worker --insecure --server head.recon.test", port,
                               " --data clusters:4000,500,16,4 --model mlp:16-24-4 --device cpu")},
                 directory / "worker.log");
  const auto completed = [&](const std::string& at) {
    const auto status = ControlClient(*ConnectTo(at, {})).Status();
    return status.ok() ? status->samples_completed() : 0;
  };
  REQUIRE(Eventually([&] { return completed(address) > 1000; }));
  server->Kill();
  name_is_at("127.0.0.3");
  server = start("127.0.0.3" + port);
  const uint64_t before = completed("127.0.0.3" + port);
  // Sooner than gRPC looks a name up again by itself (30 s).
  CHECK(Eventually([&] { return completed("127.0.0.3" + port) > before + 1000; }, absl::Seconds(15)));
}

TEST_CASE("a server says when the name where it listens is only its own machine", "[environment]") {
  if (geteuid() != 0) {
    WARN("SKIP: a table of hosts of one's own needs root");
    return;
  }
  const TempDir directory;
  WriteWholeFile(directory / "hosts", "127.0.1.1 head.recon.test\n");
  Process server(
      {"/usr/bin/unshare", "-m", "--kill-child", "/bin/sh", "-c",
       absl::StrCat("mount --bind ", directory / "hosts", " /etc/hosts && exec ", ProgramDirectory(),
                    "/recon-server --insecure --listen head.recon.test:0 --data ", directory / "data")},
      directory / "log");
  CHECK(Eventually([&] {
    return absl::StrContains(server.output(),
                             "that name is 127.0.1.1 on this machine: others do not reach it");
  }));
}

TEST_CASE("a finished job's totals are there after a restart, and snapshots' steps go on", "[environment]") {
  ProcessJob job({"--data-epochs", "1", "--batch", "20", "--snapshot-interval", "1h"});
  REQUIRE(job.StartServer());
  auto worker = job.StartWorker("one");
  REQUIRE(job.Finished());
  CHECK(worker->Wait(absl::Seconds(30)) == 0);
  const StatusReply finished = *job.Status();
  REQUIRE(finished.members_size() == 1);
  CHECK(finished.members(0).samples_completed() == 4000);
  CHECK(finished.members(0).pushes() == 200);
  CHECK(finished.members(0).next_step() == 200);
  CHECK(finished.updates() == 200);
  const auto drained = [&] {
    std::string output;
    return RunProgram({"reconctl", "drain", "--server", job.address()}, &output) == 0;
  };
  REQUIRE(drained());
  job.set_server_flags({"--data-epochs", "2", "--batch", "20", "--snapshot-interval", "1h"});
  REQUIRE(job.StartServer());
  CHECK(job.Status()->updates() == 200);
  CHECK(job.Status()->samples_completed() == 4000);
  worker = job.StartWorker("one");
  REQUIRE(job.Finished());
  CHECK(job.Status()->updates() == 400);
  CHECK(job.Status()->members(0).samples_completed() == 8000);
  REQUIRE(drained());
  std::string output;
  REQUIRE(RunProgram({"reconctl", "snapshot", "list", job.snapshots(), "--json"}, &output) == 0);
  CHECK(absl::StrContains(output, "\"updates\":200"));
  CHECK(absl::StrContains(output, "\"updates\":400"));
}

TEST_CASE("a first push is counted from when a worker could push, not from when somebody started the server",
          "[environment]") {
  ProcessJob job(JobFlags(1));
  REQUIRE(job.StartServer());
  // A worker that comes late.
  REQUIRE(Eventually([&] { return job.Status()->uptime_seconds() > 2; }));
  auto worker = job.StartWorker("one");
  REQUIRE(Eventually([&] { return job.Status()->recover_ms() > 0; }));
  const StatusReply status = *job.Status();
  CHECK(status.recover_ms() > 2000);
  CHECK(status.first_push_ms() > 0);
  CHECK(status.first_push_ms() < status.recover_ms() - 1000);
}

TEST_CASE("who is slow under bsp is shown, and whom it holds up", "[environment]") {
  ProcessJob job({"--data-epochs", "100000", "--sync", "bsp", "--workers-min", "2"});
  REQUIRE(job.StartServer());
  auto slow = job.StartWorker("slow", {"--model", "mlp:16-24-4", "--step-ms", "50"});
  auto fast = job.StartWorker("fast");
  std::string output;
  CHECK(Eventually([&] {
    return RunProgram({"reconctl", "status", "--server", job.address()}, &output) == 0 &&
           absl::StrContains(output, " s a batch) holds up 1 worker, which waits ");
  }));
  CHECK(absl::StrContains(output, "waiting    bsp: slow (0.05"));
  CHECK(absl::StrContains(output, "STEP TIME"));
  CHECK(absl::StrContains(output, "WAITS %"));
  const StatusReply status = *job.Status();
  for (const MemberStatus& member : status.members()) {
    if (member.name() == "slow") CHECK(member.waits_share() < 0.3);
    if (member.name() == "fast") CHECK(member.waits_share() > 0.5);
  }
}

TEST_CASE("reconctl drain returns when the server has ended, with 1 if its snapshot failed",
          "[environment]") {
  for (const bool fails : {false, true}) {
    INFO("fails " << fails);
    ProcessJob job(JobFlags(100'000));
    REQUIRE(job.StartServer());
    auto worker = job.StartWorker("one");
    REQUIRE(job.SamplesReach(1000));
    const std::string packs = job.snapshots() + "/packs";
    if (fails) {
      std::filesystem::remove_all(packs);
      WriteWholeFile(packs, "no directory");
    }
    std::string output;
    const int code = RunProgram({"reconctl", "drain", "--server", job.address()}, &output);
    INFO(output);
    CHECK_FALSE(job.server().running());
    CHECK(code == (fails ? 1 : 0));
    CHECK(
        absl::StrContains(output, fails ? "its last snapshot failed: " : "the server has ended; snapshot "));
    CHECK(job.server().Wait(absl::Seconds(30)) == (fails ? 1 : 0));
  }
}

TEST_CASE("a server that may have too few threads says so, before and when it ends", "[environment]") {
  if (geteuid() != 0) {
    WARN("SKIP: another user, who has few threads, needs root");
    return;
  }
  const TempDir directory;
  REQUIRE(chmod(directory.path().c_str(), 0777) == 0);
  // Where that user can reach it.
  for (const char* file : {"/recon-server", "/librecon_messages.so"}) {
    std::filesystem::copy_file(ProgramDirectory() + file, directory.path() + file);
  }
  std::string output;
  const int code = RunProgram({"/usr/bin/setpriv", "--reuid", "64321", "--regid", "64321", "--clear-groups",
                               "/usr/bin/prlimit", "--nproc=4", ProgramDirectory() + "/recon-server",
                               "--data", directory / "data", "--listen", "127.0.0.1:0"},
                              &output);
  INFO(output);
  CHECK(code == 1);
  CHECK(absl::StrContains(output, "4 threads are allowed, of all processes together; one needs about "));
  CHECK(absl::StrContains(output, "no further thread can be started: 4 are allowed"));
}

TEST_CASE("what is installed runs from its prefix, and units name it there", "[environment]") {
  const TempDir directory;
  const std::string prefix = directory / "prefix";
  std::string output;
  const int installed = RunProgram(
      {"/usr/bin/cmake", "--install", ProgramDirectory() + "/..", "--component", "recon", "--prefix", prefix},
      &output);
  INFO(output);
  REQUIRE(installed == 0);
  for (const char* program : {"recon-server", "recon-worker", "reconctl"}) {
    const std::string path = absl::StrCat(prefix, "/bin/", program);
    CHECK(RunProgram({path, "--help"}, &output) == 0);
    CHECK(RunProgram({"/usr/bin/ldd", path}, &output) == 0);
    CHECK(absl::StrContains(output, absl::StrCat(prefix, "/")));  // Its own messages, not the build's.
  }
  const std::string units = prefix + "/lib/systemd/system/";
  const std::string server = ReadWholeFile(units + "recon-server.service");
  const std::string worker = ReadWholeFile(units + "recon-worker@.service");
  CHECK(absl::StrContains(server, absl::StrCat("ExecStart=", prefix, "/bin/recon-server ")));
  CHECK(absl::StrContains(worker, absl::StrCat("ExecStart=", prefix, "/bin/recon-worker ")));
  for (const std::string& unit : {server, worker}) {
    CHECK(absl::StrContains(unit, "\nUser=recon\n"));
    CHECK(absl::StrContains(unit, "\nStartLimitIntervalSec=0\n"));
  }
}

TEST_CASE("as many threads compute as the control group's quota allows", "[environment]") {
  const TempDir groups;
  std::filesystem::create_directories(groups.path() + "/cpu");
  Process mounts({"/usr/bin/unshare", "-m", "/bin/mount", "--bind", groups.path(), "/sys/fs/cgroup"},
                 groups / "log");
  if (mounts.Wait(absl::Seconds(30)) != 0) {
    WARN("SKIP: nothing may be mounted here");
    return;
  }
  // How many threads a server has for updates where it may use so many hundredths of a core.
  const auto threads = [&](const std::string& quota) {
    WriteWholeFile(groups / "cpu.max", quota + " 100\n");
    WriteWholeFile(groups / "cpu/cpu.cfs_quota_us", quota + "\n");
    WriteWholeFile(groups / "cpu/cpu.cfs_period_us", "100\n");
    const TempDir directory;
    Process server(
        {"/usr/bin/unshare", "-m", "/bin/sh", "-c",
         absl::StrCat("mount --bind ", groups.path(), " /sys/fs/cgroup && exec ", ProgramDirectory(),
                      "/recon-server --listen 127.0.0.1:0 --data ", directory / "data")},
        directory / "log");
    CHECK(Eventually([&] { return !ReadWholeFile(directory / "data/ADDRESS").empty(); }));
    int lanes = 0;
    for (const auto& task :
         std::filesystem::directory_iterator(absl::StrCat("/proc/", server.pid(), "/task"))) {
      lanes += absl::StartsWith(ReadWholeFile(task.path() / "comm"), "lane") ? 1 : 0;
    }
    if (quota == "50") CHECK(absl::StrContains(server.output(), " 1 of "));
    return lanes;
  };
  CHECK(threads("50") == 1);
  CHECK(threads("1000000") == std::min(16, static_cast<int>(std::thread::hardware_concurrency())));
}

}  // namespace recon
