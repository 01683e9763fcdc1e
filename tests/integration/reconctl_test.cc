#include <algorithm>
#include <csignal>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/integration/process_job.h"

namespace recon {
namespace {

using Json = nlohmann::json;

struct Outcome {
  int code;
  std::string output;
};

Outcome Ctl(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "reconctl");
  Outcome outcome;
  outcome.code = RunProgram(arguments, &outcome.output);
  return outcome;
}

Json JsonOf(std::vector<std::string> arguments) {
  arguments.push_back("--json");
  const Outcome outcome = Ctl(arguments);
  INFO(outcome.output);
  REQUIRE(outcome.code == 0);
  return Json::parse(outcome.output);
}

// Whether a string anywhere in `json` is nothing but digits.
bool HasNumberAsText(const Json& json) {
  if (json.is_string()) {
    const auto& text = json.get_ref<const std::string&>();
    return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  }
  if (!json.is_structured()) return false;
  return std::any_of(json.begin(), json.end(), [](const Json& part) { return HasNumberAsText(part); });
}

// A job of two data epochs, done and drained.
struct FinishedJob {
  FinishedJob() : job({"--data-epochs", "2", "--split-samples", "500", "--sync-period", "no_decay=2"}) {
    REQUIRE(job.StartServer());
    auto worker = job.StartWorker("one");
    CHECK(worker->Wait(absl::Seconds(60)) == 0);
  }
  ProcessJob job;
};

}  // namespace

TEST_CASE("numbers are numbers in all of reconctl's JSON, and data epochs count from 1", "[reconctl]") {
  FinishedJob finished;
  const std::string server = finished.job.address();
  const Json status = JsonOf({"status", "--server", server});
  CHECK_FALSE(HasNumberAsText(status));
  CHECK(status["samples_completed"] == 8000);
  CHECK(status["phase"] == "PHASE_FINISHED");
  CHECK(status["job"]["sync_periods"] == Json{{"no_decay", 2}});
  CHECK(status["members"].size() == 1);
  CHECK(status["job"]["batch_samples"].is_number());
  std::set<int> evaluated;
  for (const Json& evaluation : status["evaluations"]) evaluated.insert(evaluation["data_epochs"].get<int>());
  const Json completions = JsonOf({"completions", "--server", server});
  CHECK_FALSE(HasNumberAsText(completions));
  std::map<std::string, std::set<int>> epochs;
  for (const Json& completion : completions["completions"]) {
    epochs[completion["kind"]].insert(completion["data_epoch"].get<int>());
    CHECK(completion["end"].is_number());
  }
  CHECK(epochs["LEASE_TRAIN"] == std::set<int>{1, 2});
  CHECK(epochs["LEASE_EVAL"] == std::set<int>{1, 2});
  CHECK(evaluated == std::set<int>{1, 2});
  const Json taken = JsonOf({"snapshot", "take", "--server", server});
  CHECK(taken["stored_bytes"].is_number());
  const Json shown = JsonOf({"snapshot", "show", finished.job.snapshots()});
  CHECK_FALSE(HasNumberAsText(shown));
  std::map<std::string, std::set<int>> passes;
  for (const Json& pass : shown["passes"]) passes[pass["kind"]].insert(pass["data_epoch"].get<int>());
  CHECK(passes["training"] == std::set<int>{1, 2});
  CHECK(passes["evaluation"] == std::set<int>{1, 2});
}

TEST_CASE("snapshot show lists the tensors, and pins are said and listed", "[reconctl]") {
  FinishedJob finished;
  const std::string directory = finished.job.snapshots();
  const Json shown = JsonOf({"snapshot", "show", directory, "1"});
  const Json tensors = {{{"name", "layer0.weight"}, {"shape", {24, 16}}, {"group", "default"}},
                        {{"name", "layer0.bias"}, {"shape", {24}}, {"group", "no_decay"}},
                        {{"name", "layer1.weight"}, {"shape", {4, 24}}, {"group", "default"}},
                        {{"name", "layer1.bias"}, {"shape", {4}}, {"group", "no_decay"}}};
  CHECK(shown["tensors"] == tensors);
  const Outcome table = Ctl({"snapshot", "show", directory});
  CHECK(absl::StrContains(table.output, "layer0.weight  [24, 16]  default"));

  const auto pin = [&](const std::string& more, const std::string& said) {
    std::vector<std::string> arguments = {"snapshot", "pin", directory, "1"};
    if (!more.empty()) arguments.push_back(more);
    const Outcome outcome = Ctl(arguments);
    CHECK(outcome.code == 0);
    CHECK(outcome.output == "snapshot 1 " + said + "\n");
  };
  CHECK(JsonOf({"snapshot", "list", directory})[0]["pinned"] == false);
  pin("--remove", "was not pinned");
  pin("", "is pinned: no rule removes it");
  pin("", "was pinned already");
  CHECK(JsonOf({"snapshot", "list", directory})[0]["pinned"] == true);
  CHECK(JsonOf({"snapshot", "list", directory})[1]["pinned"] == false);
  CHECK(absl::StrContains(Ctl({"snapshot", "list", directory}).output, "GENERATION  PINNED"));
  pin("--remove", "is pinned no longer: the rules apply to it");
  const Json json = JsonOf({"snapshot", "pin", directory, "1"});
  CHECK(json == Json{{"generation", 1}, {"pinned", true}, {"was_pinned", false}});
  CHECK(Ctl({"snapshot", "pin", directory, "99"}).code == 5);
  CHECK(Ctl({"snapshot", "pin", directory, "99", "--remove"}).code == 5);
}

TEST_CASE("the log of a server reads as its flags do, in units that fit, and says what a restart changed",
          "[reconctl]") {
  ProcessJob job({"--sync", "ssp:4", "--staleness-correction", "inverse", "--split-samples", "200"});
  REQUIRE(job.StartServer());
  {
    auto worker = job.StartWorker("one");
    REQUIRE(job.SamplesReach(400));
  }
  CHECK(absl::StrContains(job.ServerLog(), "policy --sync ssp:4 --staleness-correction inverse, optimizer"));
  CHECK(absl::StrContains(job.ServerLog(), " published (initial): "));
  CHECK(absl::StrContains(job.ServerLog(), " kB of them new"));
  CHECK_FALSE(absl::StrContains(job.ServerLog(), "0.0 MB"));
  CHECK_FALSE(absl::StrContains(job.ServerLog(), "settings changed"));
  job.server().Signal(SIGTERM);
  REQUIRE(job.server().Wait(absl::Seconds(30)) == 0);
  job.set_server_flags({"--sync", "ssp:4", "--split-samples", "200", "--learning-rate", "0.01",
                        "--snapshot-interval", "20s", "--group", "conv:lr_scale=4", "--local-steps", "0"});
  REQUIRE(job.StartServer());
  const std::string line =
      "settings changed since the last start: --group default -> conv:lr_scale=4, --learning-rate 0.001 -> "
      "0.01, --snapshot-interval 30s -> 20s, --staleness-correction inverse -> none\n";
  INFO(job.ServerLog());
  CHECK(absl::StrContains(job.ServerLog(), line));
  // Once: the next start with the same flags has no such line.
  const size_t said = job.ServerLog().find(line);
  job.server().Kill();
  REQUIRE(job.StartServer());
  CHECK(job.ServerLog().find("settings changed", said + 1) == std::string::npos);
}

TEST_CASE("a server that has joined another points to its head", "[reconctl]") {
  const TempDir directory;
  Process head({"recon-server", "--data", directory / "head", "--listen", "127.0.0.1:0", "--servers", "2",
                "--snapshot-dir", directory / "snapshots"},
               directory / "head.log");
  const auto address = [&](const std::string& of) {
    const std::string file = directory / (of + "/ADDRESS");
    REQUIRE(Eventually([&] { return absl::EndsWith(ReadWholeFile(file), "\n"); }));
    return std::string(absl::StripSuffix(ReadWholeFile(file), "\n"));
  };
  const std::string at = address("head");
  Process joined({"recon-server", "--data", directory / "joined", "--listen", "127.0.0.1:0", "--join", at},
                 directory / "joined.log");
  const std::string server = address("joined");
  CHECK(Eventually(
      [&] { return absl::StrContains(ReadWholeFile(directory / "joined.log"), "no place in the job yet"); }));
  const std::string why =
      "this server has joined the job of another, its head, and does not speak for it: ask --server " + at +
      "\n";
  const std::vector<std::vector<std::string>> verbs = {
      {"status"}, {"completions"}, {"drain"}, {"snapshot", "take"}, {"policy", "set", "--sync", "bsp"}};
  for (std::vector<std::string> verb : verbs) {
    verb.insert(verb.end(), {"--server", server});
    const Outcome outcome = Ctl(verb);
    CHECK(outcome.code == 1);
    CHECK(outcome.output == "reconctl: " + why);
  }
  std::string output;
  CHECK(RunProgram({"recon-worker", "--server", server, "--data", "clusters:400,50,16,4", "--model",
                    "mlp:16-24-4", "--device", "cpu"},
                   &output) == 1);
  CHECK(absl::EndsWith(output, "recon-worker: " + why));
}

}  // namespace recon
