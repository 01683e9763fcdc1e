#include <signal.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "catch2/catch.hpp"
#include "common/rpc/trace_client.h"
#include "common/trace/span_pieces.h"
#include "tests/integration/servers_job.h"
#include "tests/integration/trace_file.h"
#include "tests/support/certificates.h"
#include "tools/trace/timeline.h"

namespace recon {
namespace {

// Seven shards, that three servers have.
const std::vector<std::string> kWideModel = {"--model", "mlp:16-20000-4"};
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
    CHECK(logged.at(key)[0].begin >= receiving.end);
    CHECK(logged.at(key)[0].end <= frame.end);
    for (const TraceFile::Span& apply :
         applied.count(key) ? applied.at(key) : std::vector<TraceFile::Span>()) {
      CHECK(apply.begin >= logged.at(key)[0].end);
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

// The spans that processes whose titles begin so should have, and have not all.
std::string Lacking(const TraceFile& trace, const std::string& begin, const std::vector<std::string>& names) {
  std::string lacking;
  for (const auto& [process, title] : trace.processes()) {
    if (!absl::StartsWith(title, begin)) continue;
    const std::set<std::string> there = trace.NamesOf(process);
    for (const std::string& name : names) {
      if (there.count(name) == 0) absl::StrAppend(&lacking, title, " has no \"", name, "\"; ");
    }
  }
  return lacking;
}

// What lacks of a trace of some seconds of three servers and four workers that train.
std::string Lacking(const TraceFile& trace) {
  const std::vector<std::string> of_server = {
      "receiving", "log",   "writing the log", "apply", "waiting for others",
      "closing",   "reply", "snapshot",        "frame"};
  const std::vector<std::string> of_worker = {"computing", "encoding", "sending", "under way",
                                              "waiting for pushes"};
  return absl::StrCat(Lacking(trace, "head ", of_server), Lacking(trace, "server ", of_server),
                      Lacking(trace, "worker ", of_worker),
                      trace.Frames("under way").size() < 60 ? "too few frames" : "");
}

}  // namespace

TEST_CASE("a trace of three servers and four workers shows both sides of every push, in their order",
          "[trace]") {
  TracedJob job("bsp");
  // How much happens in a second hangs on who else uses the machine.
  std::string output;
  std::unique_ptr<TraceFile> file;
  for (const char* seconds : {"2", "6", "30"}) {
    std::vector<std::string> command = job.Command(seconds, "job.json");
    command.insert(command.end(), {"--explain", "--json"});
    REQUIRE(RunProgram(command, &output) == 0);
    file = std::make_unique<TraceFile>(job.Path("job.json"));
    if (Lacking(*file).empty()) break;
  }
  INFO(output);
  const TraceFile& trace = *file;
  CHECK(Lacking(trace) == "");
  REQUIRE(trace.processes().size() == 7);
  CHECK(trace.ErrorOf(trace.ProcessOf("head ")) == 0);
  for (const char* title : {"server 1 ", "server 2 ", "worker "})
    CHECK(trace.ErrorOf(trace.ProcessOf(title)) > 0);
  CheckOrder(trace);
  CHECK(trace.other()["lacking"].empty());
  // On a busy machine lines of what lacks may come before it.
  const auto told = nlohmann::json::parse(output.substr(output.find('{')));
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
  // A worker dies when it has delivered something: all the others' spans are there, and its own until then.
  TimelineBuilder builder;
  int64_t begin_ns = 0, head_ns = 0;
  int delivered = 0;
  const absl::Status recorded =
      TraceClient(*ConnectTo(job.address(), {})).Record(absl::Seconds(5), [&](TraceUpdate update) {
        if (update.has_begun()) begin_ns = update.begun().begin_ns();
        const TraceMember& member = update.delivery().member();
        if (member.role() == TRACE_ROLE_SERVER && member.number() == 0) {
          trace::ForEachSpan(update.delivery(),
                             [&](const trace::DeliveredSpan& span) { head_ns = span.end_ns; });
        }
        // The second one has something of the time that is shown.
        const bool has_spans = member.name() == "three" && update.delivery().spans().name_size() > 0;
        if (has_spans && head_ns > begin_ns && ++delivered == 2) job.workers[2]->Kill();
        CHECK(builder.Add(std::move(update)).ok());
      });
  INFO(recorded);
  CHECK(recorded.ok());
  REQUIRE(builder.ended());
  const Timeline timeline = builder.Build();
  CHECK(timeline.processes.size() == 7);
  for (const Timeline::Process& process : timeline.processes) {
    INFO(ProcessTitle(process.member));
    CHECK(process.spans > 0);
  }
  REQUIRE(timeline.gaps.size() == 1);
  CHECK(timeline.gaps[0].member().name() == "three");
  CHECK(absl::StartsWith(timeline.gaps[0].why(), "it has delivered nothing in the last "));
  // One that stands still does not answer: reconctl says so, and has the others.
  job.workers[3]->Signal(SIGSTOP);
  CHECK(RunProgram(job.Command("0.3", "job.json"), &output) == 0);
  INFO(output);
  CHECK(absl::StrContains(output, "lacking: worker "));
  CHECK(absl::StrContains(output, " four: it has delivered nothing\n"));
  const TraceFile file(job.Path("job.json"));
  CHECK(file.ProcessOf("server 2 ") != 0);
  bool named = false;
  for (const auto& gap : file.other()["lacking"]) {
    named = named || absl::EndsWith(gap["name"].get<std::string>(), " four");
  }
  CHECK(named);
  job.workers[3]->Signal(SIGCONT);
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
  CHECK(absl::StrContains(wrong({"--seconds", "1", "-o", job.data()}), "is a directory, no regular file"));
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

TEST_CASE("with TLS a trace is of and for those whose certificate the server takes", "[trace]") {
  const Certificates ours("ours");
  const Certificates theirs("theirs");
  std::vector<std::string> flags = ours.Flags();
  flags.insert(flags.end(), {"--data-epochs", "100000"});
  ProcessJob job(flags);
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("one", ours.Flags());
  const auto trace = [&](const Certificates& certificates, std::string* output) {
    std::vector<std::string> command = {"reconctl",    "trace", "--server",
                                        job.address(), "-o",    job.directory() / "trace.json",
                                        "--seconds",   "0.3",   "--json"};
    const std::vector<std::string> tls = certificates.Flags();
    command.insert(command.end(), tls.begin(), tls.end());
    return RunProgram(command, output);
  };
  std::string output;
  CHECK(trace(theirs, &output) == 2);
  INFO(output);
  CHECK(absl::StrContains(output, "the server's certificate is not of the CA in --tls-ca"));
  CHECK_FALSE(absl::StrContains(job.ServerLog(), "a trace"));
  // Until the worker has joined and pushes.
  REQUIRE(
      Eventually([&] { return trace(ours, &output) == 0 && absl::StrContains(output, "\"computing\""); }));
  const TraceFile file(job.directory() / "trace.json");
  CHECK(file.NamesOf(file.ProcessOf("worker ")).count("under way") == 1);
  CHECK(file.NamesOf(file.ProcessOf("head ")).count("apply") == 1);
}

}  // namespace recon
