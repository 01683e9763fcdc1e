#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "common/rpc/trace_client.h"
#include "tests/integration/servers_job.h"
#include "tests/integration/trace_file.h"

namespace recon {
namespace {

// Five shards, that three servers have.
const std::vector<std::string> kWideModel = {"--model", "mlp:16-90000-4"};
const std::vector<std::string> kNames = {"one", "two", "three", "four"};  // "two" uses the network.

// Three servers and four workers, that train.
struct TracedJob : ServersJob {
  explicit TracedJob(const std::string& sync)
      : ServersJob(3, {"--sync", sync, "--data-epochs", "100000", "--split-samples", "200", "--batch", "20",
                       "--optimizer", "sgd", "--learning-rate", "0.003", "--workers-min", "4",
                       "--snapshot-interval", "500ms", "--evict-after", "2s"}) {
    REQUIRE(StartAll());
    for (const std::string& name : kNames) workers.push_back(StartWorker(name, kWideModel));
    REQUIRE(SamplesReach(800));
  }
  std::vector<std::string> Command(const std::string& seconds, const std::string& file) const {
    return {"reconctl", "trace", "--server", address(), "--seconds", seconds, "-o", Path(file)};
  }
  std::string Path(const std::string& file) const { return directory() / file; }
  std::unique_ptr<Process> StartTrace(const std::string& seconds, const std::string& file) {
    return std::make_unique<Process>(Command(seconds, file), directory() / (file + ".log"));
  }

  std::vector<std::unique_ptr<Process>> workers;
};

// Whether a process has a thread that is called so.
bool HasThread(pid_t process, const std::string& name) {
  std::error_code error;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", process, "/task"), error)) {
    if (ReadWholeFile(task.path() / "comm") == name + "\n") return true;
  }
  return false;
}

bool Records(pid_t process) {
  return Eventually([process] { return HasThread(process, "trace"); });
}

// Spans of each frame on both sides, in the order in which they must be, but for what clocks may be wrong by.
void CheckOrder(const TraceFile& trace) {
  const auto received = trace.Frames("receiving");
  const auto at_server = trace.Frames("frame");
  const auto applied = trace.Frames("apply");
  const auto logged = trace.Frames("log");
  const auto sent = trace.Frames("sending");
  int checked = 0;
  std::set<int> workers, servers;
  for (const auto& [key, under_way] : trace.Frames("under way")) {
    const auto same = [&, frame = key](const auto& frames) {
      const auto found = frames.find(frame);
      return found != frames.end() && found->second.size() == 1;
    };
    // At the trace's begin and end there is one side, or a part, of some.
    if (under_way.size() != 1 || !same(received) || !same(at_server) || !same(logged) || !same(sent))
      continue;
    const TraceFile::Span& way = under_way[0];
    const TraceFile::Span& receiving = received.at(key)[0];
    const TraceFile::Span& frame = at_server.at(key)[0];
    const double error = trace.ErrorOf(way.process) + trace.ErrorOf(frame.process);
    INFO("worker " << std::get<0>(key) << ", step " << std::get<1>(key) << ", shard " << std::get<2>(key)
                   << ", error " << error);
    CHECK(sent.at(key)[0].begin <= receiving.begin + error);
    CHECK(way.begin <= frame.begin + error);
    CHECK(frame.end <= way.end + error);
    CHECK(frame.begin < way.end + error);
    // By one clock.
    CHECK(frame.begin <= receiving.begin);
    CHECK(logged.at(key)[0].begin >= receiving.begin);
    CHECK(logged.at(key)[0].end <= frame.end);
    for (const TraceFile::Span& apply :
         applied.count(key) ? applied.at(key) : std::vector<TraceFile::Span>()) {
      CHECK(apply.begin >= receiving.end - 1);
      CHECK(apply.end <= frame.end);
    }
    workers.insert(way.process);
    servers.insert(frame.process);
    ++checked;
  }
  CHECK(checked >= 20);
  CHECK(workers.size() == 4);
  CHECK(servers.size() == 3);
  CHECK(trace.arrows() >= 20);
}

}  // namespace

TEST_CASE("a trace of three servers and four workers shows both sides of every push, in their order",
          "[trace]") {
  TracedJob job("bsp");
  std::vector<std::string> command = job.Command("2", "job.json");
  command.insert(command.end(), {"--explain", "--json"});
  std::string output;
  REQUIRE(RunProgram(command, &output) == 0);
  INFO(output);
  const TraceFile trace(job.Path("job.json"));
  REQUIRE(trace.processes().size() == 7);
  for (const char* server : {"head ", "server 1 ", "server 2 "}) {
    INFO(server);
    const std::set<std::string> names = trace.NamesOf(trace.ProcessOf(server));
    for (const char* name : {"receiving", "log", "writing the log", "apply", "waiting for others", "closing",
                             "reply", "snapshot", "frame"}) {
      INFO(name);
      CHECK(names.count(name) == 1);
    }
  }
  for (const auto& [process, title] : trace.processes()) {
    if (!absl::StartsWith(title, "worker ")) continue;
    INFO(title);
    const std::set<std::string> names = trace.NamesOf(process);
    for (const char* name : {"computing", "encoding", "sending", "under way", "waiting for pushes"}) {
      INFO(name);
      CHECK(names.count(name) == 1);
    }
    CHECK(trace.ErrorOf(process) > 0);
  }
  CheckOrder(trace);
  CHECK(trace.other()["lacking"].empty());
  const auto told = nlohmann::json::parse(output);
  CHECK(told["clock_error_ms"] == trace.other()["clock_error_ms"]);
  CHECK(told["explanation"].size() == 3);
  REQUIRE(told["workers"].size() == 4);
  for (const auto& worker : told["workers"]) {
    double sum = 0;
    for (const auto& share : worker["shares"]) sum += share.get<double>();
    CHECK(std::abs(sum - 1) < 1e-6);
    CHECK(worker["shares"]["computing"] > 0.0);
  }
}

TEST_CASE("traces end with who asked for them, and say whose spans lack", "[trace]") {
  TracedJob job("asp");
  std::string output;
  {
    // One at a time; and nothing is recorded for a client that has died.
    const auto first = job.StartTrace("60", "first.json");
    for (const auto& worker : job.workers) REQUIRE(Records(worker->pid()));
    REQUIRE(Records(job.process(1).pid()));
    CHECK(RunProgram(job.Command("1", "second.json"), &output) == 1);
    INFO(output);
    CHECK(absl::StrContains(output, "a trace is being recorded already"));
    CHECK_FALSE(std::filesystem::exists(job.Path("second.json")));
    first->Kill();
    for (const auto& worker : job.workers) {
      CHECK(Eventually([&] { return !HasThread(worker->pid(), "trace"); }));
    }
    CHECK(Eventually([&] { return !HasThread(job.process(1).pid(), "trace"); }));
    CHECK_FALSE(std::filesystem::exists(job.Path("first.json")));
  }
  // A worker dies: all the others' spans are there, and its own until then.
  const auto trace = job.StartTrace("3", "job.json");
  REQUIRE(Records(job.workers[2]->pid()));
  const uint64_t samples = job.Status()->samples_completed();
  REQUIRE(job.SamplesReach(samples + 200));
  job.workers[2]->Kill();
  CHECK(trace->Wait(absl::Seconds(60)) == 0);
  INFO(trace->output());
  const TraceFile file(job.Path("job.json"));
  CHECK(file.processes().size() == 7);
  REQUIRE(file.other()["lacking"].size() == 1);
  CHECK(absl::EndsWith(file.other()["lacking"][0]["name"].get<std::string>(), " three"));
  CHECK(absl::StrContains(trace->output(), "lacking: worker "));
  CHECK(absl::StrContains(trace->output(), " three: it has delivered nothing in the last "));
  // The job goes on as if nothing had been.
  CHECK(job.SamplesReach(job.Status()->samples_completed() + 400));
  // Who has joined a head is not it.
  CHECK(RunProgram({"reconctl", "trace", "--server", job.Status()->servers(0).address(), "--seconds", "1",
                    "-o", job.Path("joined.json")},
                   &output) == 1);
  CHECK(absl::StrContains(output, "it is not the head of a job"));
}

TEST_CASE("what a trace is asked for is checked before anything is recorded", "[trace]") {
  ProcessJob job({});
  REQUIRE(job.StartServer());
  const auto wrong = [&](std::vector<std::string> flags) {
    std::vector<std::string> command = {"reconctl", "trace", "--server", job.address()};
    command.insert(command.end(), flags.begin(), flags.end());
    std::string output;
    const int code = RunProgram(command, &output);
    INFO(output);
    CHECK(code == 2);
    const std::vector<std::string> lines = absl::StrSplit(output, '\n', absl::SkipEmpty());
    CHECK(lines.size() == 1);
    return output;
  };
  const std::string file = job.directory() / "trace.json";
  CHECK(absl::StrContains(wrong({"--seconds", "0", "-o", file}), "--seconds 0: expected 0.1 to 60"));
  CHECK(absl::StrContains(wrong({"--seconds", "61", "-o", file}), "--seconds 61: expected 0.1 to 60"));
  CHECK(absl::StrContains(wrong({"--seconds", "nan", "-o", file}), "expected 0.1 to 60"));
  CHECK(absl::StrContains(wrong({"--seconds", "1"}), "-o FILE"));
  CHECK(
      absl::StrContains(wrong({"--seconds", "1", "-o", job.directory() / "no/where.json"}), "no/where.json"));
  CHECK(absl::StrContains(wrong({"--seconds", "1", "-o", job.data()}), "it is a directory"));
  CHECK_FALSE(absl::StrContains(job.ServerLog(), "a trace"));

  // A head without workers has nothing but itself to show.
  std::string output;
  CHECK(RunProgram(
            {"reconctl", "trace", "--server", job.address(), "--seconds", "0.2", "-o", file, "--explain"},
            &output) == 0);
  INFO(output);
  CHECK(absl::StrContains(output, "no worker has pushed anything"));
  CHECK(TraceFile(file).processes().size() == 1);
  // Who knows no trace's number can deliver nothing.
  TraceClient client(*ConnectTo(job.address(), {}));
  CHECK(absl::IsFailedPrecondition(client.ReadClock(1).status()));
  CHECK(absl::IsFailedPrecondition(client.Deliver(TraceDelivery()).status()));
  for (const absl::Duration length : {absl::ZeroDuration(), absl::Seconds(61)}) {
    CHECK(absl::IsInvalidArgument(client.Record(length, [](const TraceUpdate&) {})));
  }
}

}  // namespace recon
