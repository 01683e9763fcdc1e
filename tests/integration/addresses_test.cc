// Jobs on machines whose network lacks something, made of a network namespace.

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "catch2/catch.hpp"
#include "common/base/process.h"
#include "tests/support/process.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

constexpr char kOnlyIpv6[] = "ip link set lo up && ip address del 127.0.0.1/8 dev lo";

// Runs a shell in a namespace of its own that `network` has made; its exit code and output.
std::pair<int, std::string> InNamespace(const std::string& network, const std::vector<std::string>& lines) {
  const std::string script = absl::StrCat("set -e; ", network, "; export PATH=", ProgramDirectory(),
                                          ":$PATH\n", absl::StrJoin(lines, "\n"));
  std::string output;
  const int code =
      RunProgram({"/usr/bin/unshare", "--net", "/bin/sh", "-c", script}, &output, absl::Seconds(120));
  return {code, output};
}

}  // namespace

TEST_CASE("a machine without IPv4 runs a job with the addresses that nobody has named", "[addresses]") {
  if (InNamespace(kOnlyIpv6, {"true"}).first != 0) {
    WARN("no namespace of its own can be made here: skipped");
    return;
  }
  const TempDir directory;
  const auto [code, output] = InNamespace(
      kOnlyIpv6,
      {absl::StrCat("recon-server --data ", directory / "data",
                    " --data-epochs 1 --exit-when-done --dashboard 0 --metrics-address 0 &"),
       "server=$!", absl::StrCat("until [ -s ", directory / "data/ADDRESS", " ]; do kill -0 $server; done"),
       absl::StrCat("cat ", directory / "data/ADDRESS"),
       "recon-worker --data clusters:4000,500,16,4 --model mlp:16-24-4 --device cpu",
       "reconctl status --json", "wait $server"});
  INFO(output);
  CHECK(code == 0);
  CHECK(absl::StrContains(output, "\n[::1]:7070\n"));
}

TEST_CASE("who listens on all addresses is found by both families, its metrics too", "[addresses]") {
  const std::string network = "ip link set lo up";
  if (InNamespace(network, {"true"}).first != 0) {
    WARN("no namespace of its own can be made here: skipped");
    return;
  }
  for (const char* all : {"0.0.0.0", "[::]"}) {
    const TempDir directory;
    const auto [code, output] = InNamespace(
        network,
        {absl::StrCat("recon-server --insecure --data ", directory / "data", " --listen ", all,
                      ":7070 --metrics-address ", all, ":9464 &"),
         "server=$!", absl::StrCat("until [ -s ", directory / "data/ADDRESS", " ]; do kill -0 $server; done"),
         "for host in 127.0.0.1 '[::1]'; do", "  reconctl status --server $host:7070 --json > /dev/null",
         "  curl -sS --noproxy '*' http://$host:9464/metrics | grep -c recon_server", "done", "kill $server",
         "wait $server"});
    INFO(all << ": " << output);
    CHECK(code == 0);
  }
}

TEST_CASE("--advertise with a name that is loopback here is warned of, as --listen is", "[addresses]") {
  if (InNamespace("true", {"true"}).first != 0) {
    WARN("no namespace of its own can be made here: skipped");
    return;
  }
  const TempDir directory;
  WriteWholeFile(directory / "hosts", "127.0.1.1 this-machine\n");
  const std::string network =
      absl::StrCat("mount --bind ", directory / "hosts", " /etc/hosts && ip link set lo up");
  const auto warned = [&](const std::string& listen) {
    const std::string script = absl::StrCat(
        "set -e; ", network, "; export PATH=", ProgramDirectory(), ":$PATH\n",
        "recon-server --insecure --join 127.0.0.1:1 --listen ", listen,
        " --advertise this-machine:7071 --data ", directory / "data", " &\nserver=$!\n", "until [ -s ",
        directory / "data/ADDRESS", " ]; do kill -0 $server; done\nkill $server; wait $server");
    std::string output;
    const int code = RunProgram({"/usr/bin/unshare", "--net", "--mount", "/bin/sh", "-c", script}, &output);
    std::filesystem::remove_all(directory / "data");
    INFO(output);
    CHECK(code == 0);
    return absl::StrContains(
        output,
        "--advertise this-machine:7071: that name is 127.0.1.1 on this machine: others do not "
        "reach it");
  };
  CHECK(warned("0.0.0.0:7071"));
  CHECK_FALSE(warned("127.0.0.1:7071"));
}

}  // namespace recon
