#include "common/base/machine_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

void WriteFile(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text << "\n";
}

MachineLimits Sixteen() {
  MachineLimits limits;
  limits.cores_of_machine = limits.cores_allowed = 16;
  limits.descriptors = 1'048'576;
  return limits;
}

}  // namespace

TEST_CASE("the quota of processor time is the least of the control groups' of either version",
          "[machine_limits]") {
  const TempDir root;
  const std::string groups = root.path() + "/proc/self/cgroup";
  const std::string mount = root.path() + "/sys/fs/cgroup";
  const auto read = [&] { return ReadMachineLimits(root.path()); };
  CHECK(read().core_quota == 0);
  const uint64_t of_user = read().threads;
  CHECK(read().Cores() >= 1);
  SECTION("version 2") {
    WriteFile(groups, "0::/job.slice/step");
    WriteFile(mount + "/job.slice/step/cpu.max", "max 100000");
    CHECK(read().core_quota == 0);
    WriteFile(mount + "/job.slice/cpu.max", "400000 100000");
    CHECK(read().core_quota == 4);
    WriteFile(mount + "/job.slice/step/cpu.max", "150000 100000");
    CHECK(read().core_quota == 1.5);
    WriteFile(mount + "/job.slice/step/pids.max", "max");
    WriteFile(mount + "/job.slice/pids.max", "50");
    CHECK(read().threads == 50);
  }
  SECTION("version 1, in a container whose own group is mounted as the root") {
    WriteFile(groups, "4:cpu,cpuacct:/docker/abc\n3:pids:/docker/abc");
    WriteFile(mount + "/cpu/cpu.cfs_quota_us", "-1");
    WriteFile(mount + "/cpu/cpu.cfs_period_us", "100000");
    CHECK(read().core_quota == 0);
    WriteFile(mount + "/cpu/cpu.cfs_quota_us", "50000");
    CHECK(read().core_quota == 0.5);
    CHECK(read().Cores() == 1);
    WriteFile(mount + "/pids/pids.max", "77");
    CHECK(read().threads == 77);
  }
  SECTION("what makes no sense is none") {
    WriteFile(groups, "0::/a");
    WriteFile(mount + "/a/cpu.max", "0 100000");
    WriteFile(mount + "/cpu.max", "5");
    WriteFile(mount + "/a/pids.max", "-1");
    CHECK(read().core_quota == 0);
    CHECK(read().threads == of_user);
  }
}

TEST_CASE("what a machine allows is one line with the numbers", "[machine_limits]") {
  MachineLimits limits = Sixteen();
  CHECK(Describe(limits) == "16 cores, 1,048,576 descriptors");
  limits.core_quota = 4;
  CHECK(limits.Cores() == 4);
  CHECK(Describe(limits) == "4 of 16 cores by the control group's quota, 1,048,576 descriptors");
  limits.core_quota = 2.5;
  limits.threads = 1000;
  limits.file_bytes = 67'108'864;
  CHECK(Describe(limits) ==
        "3 of 16 cores by the control group's quota of 2.50, 1,048,576 descriptors, 1,000 threads, files of "
        "67,108,864 bytes at most");
  limits = Sixteen();
  limits.cores_allowed = 2;  // Pinned: the quota of more does not matter.
  limits.core_quota = 4;
  limits.descriptors = 0;
  CHECK(Describe(limits) == "2 of 16 cores, any number of descriptors");
}

TEST_CASE("what is too little for the job is said with both numbers", "[machine_limits]") {
  MachineLimits limits = Sixteen();
  CHECK(TooLittle(limits, 64).empty());
  limits.descriptors = 1024;
  CHECK(TooLittle(limits, 64).empty());
  CHECK(absl::StrContains(TooLittle(limits, 100),
                          "1,024 descriptors are enough for about 89 workers (ulimit -n; wanted are 1,128)"));
  limits.threads = 20;
  limits.file_bytes = 1000;
  CHECK(absl::StrContains(TooLittle(limits, 1), "20 threads are allowed"));
  CHECK(absl::StrContains(TooLittle(limits, 1), "files may have 1,000 bytes"));
}

TEST_CASE("the limit of descriptors is raised to what may be had", "[machine_limits]") {
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit low{std::min<rlim_t>(before.rlim_max, 256), before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &low) == 0);
  RaiseLimits();
  rlimit raised{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &raised) == 0);
  CHECK(raised.rlim_cur == before.rlim_max);
  CHECK(ReadMachineLimits().descriptors == (before.rlim_max == RLIM_INFINITY ? 0 : before.rlim_max));
  REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
}

}  // namespace recon
