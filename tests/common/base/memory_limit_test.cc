#include "common/base/memory_limit.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "catch2/catch.hpp"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

void WriteFile(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text << "\n";
}

}  // namespace

TEST_CASE("memory is the machine's, or what the process' control groups allow", "[memory_limit]") {
  const uint64_t machine =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  const TempDir root;
  const std::string groups = root.path() + "/proc/self/cgroup";
  const std::string mount = root.path() + "/sys/fs/cgroup";
  const auto limit = [&] { return MemoryLimit(root.path()); };

  CHECK(limit() == machine);  // No control groups at all.
  SECTION("version 2: the least of the group's and those above") {
    WriteFile(groups, "0::/job.slice/step");
    CHECK(limit() == machine);
    WriteFile(mount + "/job.slice/step/memory.max", "max");
    CHECK(limit() == machine);
    WriteFile(mount + "/job.slice/memory.max", "3000000");
    CHECK(limit() == 3'000'000);
    WriteFile(mount + "/job.slice/step/memory.max", "4000000");
    CHECK(limit() == 3'000'000);
    WriteFile(mount + "/job.slice/step/memory.max", "2000000");
    CHECK(limit() == 2'000'000);
  }
  SECTION("version 2 in a container, whose group is the root") {
    WriteFile(groups, "0::/");
    WriteFile(mount + "/memory.max", "5000000");
    CHECK(limit() == 5'000'000);
  }
  SECTION("version 1, with a path that is the host's") {
    WriteFile(groups, "12:cpuset:/docker/abc\n4:cpu,memory:/docker/abc\n0::/docker/abc");
    WriteFile(mount + "/memory/memory.limit_in_bytes", "7000000");
    CHECK(limit() == 7'000'000);
    WriteFile(mount + "/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712");
    CHECK(limit() == 7'000'000);
  }
  SECTION("what makes no sense is none") {
    WriteFile(groups, "\n:\n0:\n0::\n0::relative\n0::/a\nmemory");
    WriteFile(mount + "/a/memory.max", "-3");
    WriteFile(mount + "/memory.max", "");
    CHECK(limit() == machine);
  }
}

}  // namespace recon
