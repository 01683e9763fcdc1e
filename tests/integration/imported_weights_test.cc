#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/snapshot/safetensors.h"
#include "tests/integration/process_job.h"
#include "tests/integration/servers_job.h"

namespace recon {
namespace {

// In alphabetical order, as other programs write it; a worker has each layer's weight first, and biases in a
// group of their own. Several shards.
std::string WriteWeights(const std::string& path, uint64_t hidden) {
  const std::vector<std::pair<std::string, std::vector<uint64_t>>> tensors = {{"layer0.bias", {hidden}},
                                                                              {"layer0.weight", {hidden, 16}},
                                                                              {"layer1.bias", {4}},
                                                                              {"layer1.weight", {4, hidden}}};
  std::vector<SafetensorsEntry> entries;
  std::string content;
  for (const auto& [name, shape] : tensors) {
    SafetensorsEntry entry;
    entry.name = name;
    entry.dtype = "F32";
    entry.shape = shape;
    entry.begin = content.size();
    const uint64_t values = shape[0] * (shape.size() > 1 ? shape[1] : 1);
    for (uint64_t i = 0; i < values; ++i) {
      const float value = static_cast<float>(i) / 1e6f - static_cast<float>(entries.size());
      content.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    entry.end = content.size();
    entries.push_back(entry);
  }
  WriteWholeFile(path, EncodeSafetensorsHeader(entries, {}) + content);
  return content;
}

}  // namespace

TEST_CASE("weights in another order begin a job of several servers, and one that comes late", "[import]") {
  const TempDir directory;
  const std::string content = WriteWeights(directory / "m.safetensors", 90'000);
  std::string said;
  REQUIRE(
      RunProgram({"reconctl", "snapshot", "import", directory / "m.safetensors", "--output", directory / "I"},
                 &said) == 0);
  ServersJob job(3, {"--from-snapshot", directory / "I", "--workers-min", "2", "--snapshot-interval", "1h"});
  REQUIRE(job.Start(0));
  // It says which model the weights are for, before the other servers are there.
  const auto worker = job.StartWorker("one", {"--model", "mlp:16-90000-4"});
  REQUIRE(
      Eventually([&] { return absl::StrContains(job.ServerLog(), "initial parameters from snapshot 1"); }));
  REQUIRE(job.Start(1));
  REQUIRE(job.Start(2));
  REQUIRE(job.AllReady());
  REQUIRE(Eventually([&] {
    const auto status = job.Status();
    return status.ok() && status->snapshot().generation() > 0;
  }));
  CHECK(RunProgram({"reconctl", "snapshot", "export", job.snapshots(), "--output", directory / "out"},
                   &said) == 0);
  const std::string out = ReadWholeFile(directory / "out");
  REQUIRE(out.size() > content.size());
  CHECK(out.substr(out.size() - content.size()) == content);  // Nothing was trained.
  // And the job begins.
  const auto second = job.StartWorker("two", {"--model", "mlp:16-90000-4"});
  CHECK(job.SamplesReach(200));
}

TEST_CASE("a worker that the weights do not fit is told all differences; the server waits for one they fit",
          "[import]") {
  const TempDir directory;
  WriteWeights(directory / "m.safetensors", 24);
  std::string said;
  REQUIRE(
      RunProgram({"reconctl", "snapshot", "import", directory / "m.safetensors", "--output", directory / "I"},
                 &said) == 0);
  ProcessJob job({"--from-snapshot", directory / "I"});
  REQUIRE(job.StartServer());
  const auto wrong = job.StartWorker("wrong", {"--model", "mlp:16-25-4"});
  CHECK(wrong->Wait(absl::Seconds(30)) == 2);
  INFO(wrong->output());
  CHECK(absl::StrContains(wrong->output(),
                          "3 differences: another shape: layer0.weight is [24,16], expected [25,16]; "
                          "another shape: layer0.bias is [24], expected [25]; "
                          "another shape: layer1.weight is [4,24], expected [4,25]"));
  const auto right = job.StartWorker("right", {"--model", "mlp:16-24-4"});
  CHECK(job.SamplesReach(200));
}

TEST_CASE("a long list of differences reaches the worker, cut, and the server's log, whole", "[import]") {
  const TempDir directory;
  WriteWeights(directory / "m.safetensors", 24);
  std::string said;
  REQUIRE(
      RunProgram({"reconctl", "snapshot", "import", directory / "m.safetensors", "--output", directory / "I"},
                 &said) == 0);
  ProcessJob job({"--from-snapshot", directory / "I"});
  REQUIRE(job.StartServer());
  std::string shapes;
  for (int i = 0; i < 500; ++i) absl::StrAppend(&shapes, "größe.", i, " 3 4\n");
  WriteWholeFile(directory / "shapes", shapes);
  const auto worker = job.StartWorker("one", {"--model", absl::StrCat("synthetic:", directory / "shapes")});
  CHECK(worker->Wait(absl::Seconds(30)) == 2);
  INFO(worker->output());
  CHECK(
      absl::StrContains(worker->output(), "504 differences: missing: größe.0 [3,4]; missing: größe.1 [3,4]"));
  CHECK(absl::StrContains(worker->output(), " more"));
  CHECK(absl::StrContains(job.ServerLog(), "missing: größe.499 [3,4]"));
  CHECK(absl::StrContains(job.ServerLog(), "left over: layer1.weight F32 [4,24]"));
}

TEST_CASE("a worker whose tensors are the job's in another order is told how a job takes them", "[import]") {
  const TempDir directory;
  WriteWeights(directory / "m.safetensors", 24);
  std::string said;
  REQUIRE(
      RunProgram({"reconctl", "snapshot", "import", directory / "m.safetensors", "--output", directory / "I"},
                 &said) == 0);
  ProcessJob job({"--snapshot-dir", directory / "I", "--optimizer", "sgd"});  // The job's own from here on.
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("one", {"--model", "mlp:16-24-4"});
  CHECK(worker->Wait(absl::Seconds(30)) == 2);
  INFO(worker->output());
  CHECK(absl::StrContains(worker->output(), "tensors are the same, in another order or in other groups"));
  CHECK(absl::StrContains(worker->output(), "--from-snapshot"));
}

TEST_CASE("a server ends, and says why, when the weights it is to begin with are damaged", "[import]") {
  const TempDir directory;
  WriteWeights(directory / "m.safetensors", 24);
  std::string said;
  REQUIRE(
      RunProgram({"reconctl", "snapshot", "import", directory / "m.safetensors", "--output", directory / "I"},
                 &said) == 0);
  const std::string pack = directory / "I/packs/PACK-0000000000000001-0";
  std::string bytes = ReadWholeFile(pack);
  REQUIRE_FALSE(bytes.empty());
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteWholeFile(pack, bytes);
  ProcessJob job({"--from-snapshot", directory / "I"});
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("one", {"--model", "mlp:16-24-4"});
  CHECK(job.server().Wait(absl::Seconds(30)) == 1);
  INFO(job.ServerLog());
  CHECK(absl::StrContains(job.ServerLog(), absl::StrCat("--from-snapshot ", directory / "I")));
  CHECK(absl::StrContains(job.ServerLog(), "checksum"));
}

TEST_CASE("a new job begins with the snapshot that --from-snapshot DIR:N names", "[import]") {
  ProcessJob first({"--data-epochs", "3", "--split-samples", "500", "--snapshot-interval", "1h",
                    "--keep-best", "accuracy"});
  REQUIRE(first.StartServer());
  const auto worker = first.StartWorker("one");
  CHECK(worker->Wait(absl::Seconds(60)) == 0);
  first.server().Signal(SIGTERM);
  CHECK(first.server().Wait(absl::Seconds(30)) == 0);
  std::string said;
  CHECK(RunProgram({"reconctl", "snapshot", "list", first.snapshots()}, &said) == 0);
  CHECK(absl::StrContains(said, " best "));
  CHECK(absl::StrContains(said, "FINITE"));
  CHECK_FALSE(absl::StrContains(said, "NO: "));
  const auto accuracy_of = [&](const std::string& from) {
    ProcessJob second({"--from-snapshot", from, "--optimizer", "sgd", "--learning-rate", "0", "--data-epochs",
                       "1", "--split-samples", "500"});
    REQUIRE(second.StartServer());
    CHECK(second.StartWorker("two")->Wait(absl::Seconds(60)) == 0);
    return second.Status()->evaluations(0).accuracy();
  };
  CHECK(accuracy_of(first.snapshots()) > 0.9);
  CHECK(accuracy_of(first.snapshots() + ":1") < 0.9);
  const std::string data = first.directory() / "other";
  CHECK(RunProgram({"recon-server", "--data", data, "--listen", "127.0.0.1:0", "--from-snapshot",
                    first.snapshots() + ":99"},
                   &said) == 1);
  CHECK(absl::StrContains(said, ":99: there is no such snapshot, but 1, "));
  CHECK(RunProgram({"recon-server", "--data", data, "--from-snapshot", "s3://bucket/job:0"}, &said) == 2);
  CHECK(absl::StrContains(said, "snapshots are numbered from 1, not 0"));
}

}  // namespace recon
