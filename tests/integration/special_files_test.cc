#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/integration/process_job.h"

namespace recon {
namespace {

// A pipe stands where a file stood, until the end.
class PipeInPlaceOf {
 public:
  explicit PipeInPlaceOf(std::string path) : path_(std::move(path)), aside_(path_ + ".aside") {
    there_ = rename(path_.c_str(), aside_.c_str()) == 0;
    REQUIRE(mkfifo(path_.c_str(), 0600) == 0);
  }
  ~PipeInPlaceOf() {
    unlink(path_.c_str());
    if (there_) rename(aside_.c_str(), path_.c_str());
  }

 private:
  const std::string path_, aside_;
  bool there_ = false;
};

// That it ends by itself, fails, and names the pipe.
void SaysSo(const std::vector<std::string>& arguments, const std::string& path) {
  std::string output;
  const int code = RunProgram(arguments, &output);
  INFO(arguments[0] << " " << arguments[1] << ": " << output);
  CHECK((code > 0 && code < 128));
  CHECK(absl::StrContains(output, path));
  // A link, in files of a server's own; and where a directory is meant.
  CHECK((absl::StrContains(output, "a pipe") || absl::StrContains(output, "no regular file") ||
         absl::StrContains(absl::AsciiStrToLower(output), "not a directory") ||
         absl::StrContains(output, "no directory") || absl::StrContains(output, "neither a directory")));
}

// The last by name; `otherwise` where there is none.
std::string NewestOf(const std::string& directory, const std::string& otherwise = "") {
  std::string newest = otherwise;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    newest = std::max(newest, entry.path().filename().string());
  }
  return absl::StrCat(directory, "/", newest);
}

// A job that is done and drained.
struct DoneJob {
  DoneJob() : job({"--data-epochs", "1", "--exit-when-done"}) {
    REQUIRE(job.StartServer());
    auto worker = job.StartWorker("one");
    REQUIRE(worker->Wait(absl::Seconds(60)) == 0);
    REQUIRE(job.server().Wait(absl::Seconds(60)) == 0);
  }
  std::vector<std::string> Server() const {
    return {"recon-server", "--data", job.data(), "--listen", "127.0.0.1:0", "--dashboard", "0"};
  }
  ProcessJob job;
};

}  // namespace

TEST_CASE("a pipe in place of a snapshot's file is named by whoever reads it, at once", "[special_files]") {
  const DoneJob done;
  const std::string snapshots = done.job.snapshots();
  for (const char* kind : {"packs", "manifests"}) {
    const std::string path = NewestOf(absl::StrCat(snapshots, "/", kind));
    const PipeInPlaceOf pipe(path);
    SaysSo({"reconctl", "snapshot", "verify", snapshots}, path.substr(snapshots.size() + 1));
    SaysSo({"reconctl", "snapshot", "export", snapshots, "--output", done.job.directory() / "m.safetensors"},
           path.substr(snapshots.size() + 1));
    SaysSo(done.Server(), path.substr(snapshots.size() + 1));
  }
}

TEST_CASE("a pipe in place of a file of the data directory is named, and the server ends",
          "[special_files]") {
  const DoneJob done;
  const std::string data = done.job.data();
  const std::vector<std::string> paths = {data + "/LOCK",
                                          data + "/ADDRESS",
                                          data + "/AUDIT",
                                          data + "/DASHBOARD",
                                          NewestOf(data + "/log", "LOG-0000000000000001"),
                                          data + "/control/CURRENT",
                                          data + "/control/new"};
  for (const std::string& path : paths) {
    const PipeInPlaceOf pipe(path);
    SaysSo(done.Server(), path);
  }
}

TEST_CASE("a pipe where a flag, a variable or a request names a file is named", "[special_files]") {
  const TempDir directory;
  const std::string pipe = directory / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const std::string data = directory / "data";
  const auto server = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"recon-server", "--data", data, "--listen", "127.0.0.1:0"});
    SaysSo(more, pipe);
  };
  server({"--config", pipe});
  server({"--tokens", pipe});
  server({"--tls-cert", pipe, "--tls-key", pipe, "--tls-ca", pipe});
  server({"--from-snapshot", pipe});
  server({"--snapshot-dir", pipe});
  SaysSo({"recon-server", "--data", pipe}, pipe);
  SaysSo({"recon-worker", "--model", "synthetic:" + pipe}, pipe);
  SaysSo({"recon-worker", "--config", pipe}, pipe);
  SaysSo({"recon-worker", "--token-file", pipe}, pipe);
  SaysSo({"recon-worker", "--tls-cert", pipe, "--tls-key", pipe, "--tls-ca", pipe}, pipe);
  SaysSo({"recon-worker", "--data", "idx:" + pipe}, pipe);
  SaysSo({"recon-worker", "--data", "cifar10:" + pipe}, pipe);
  SaysSo({"reconctl", "status", "--token-file", pipe}, pipe);
  SaysSo({"reconctl", "snapshot", "verify", pipe}, pipe);
  SaysSo({"reconctl", "snapshot", "import", pipe, "--output", directory / "imported"}, pipe);
  SaysSo({"reconctl", "history", pipe}, pipe);
  SaysSo({"reconctl", "trace", "--seconds", "1", "-o", pipe}, pipe);
}

TEST_CASE("an export replaces files, and neither a pipe nor a device", "[special_files]") {
  const DoneJob done;
  const std::string pipe = done.job.directory() / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  for (const char* format : {"safetensors", "torch"}) {
    SaysSo({"reconctl", "snapshot", "export", done.job.snapshots(), "--format", format, "--output", pipe},
           pipe);
  }
  CHECK(std::filesystem::is_fifo(pipe));
}

}  // namespace recon
