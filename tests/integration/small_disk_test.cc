// Jobs whose data directory is on a small disk, a tmpfs that the test mounts.

#include <signal.h>
#include <sys/mount.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "server/durability/push_log.h"
#include "tests/integration/completed_once.h"
#include "tests/integration/servers_job.h"

namespace recon {
namespace {

// Mounted over a directory; gone at the end.
class SmallDisk {
 public:
  SmallDisk(std::string path, const std::string& size) : path_(std::move(path)) {
    REQUIRE(FileSystem::Local()->CreateDirectories(path_).ok());
    mounted_ = mount("tmpfs", path_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  std::string path_;
  bool mounted_ = false;
};

// A model of 2.4 MB whose pushes fill a log fast.
const std::vector<std::string> kLargeModel = {"--model", "mlp:16-512-512-512-4", "--codec", "fp32"};

// Sanitizers are for the code, not for the amount.
#if defined(__SANITIZE_ADDRESS__)
constexpr uint32_t kDataEpochs = 2;
#else
constexpr uint32_t kDataEpochs = 4;
#endif

std::vector<std::string> Flags(std::vector<std::string> more) {
  std::vector<std::string> flags = {"--data-epochs",
                                    absl::StrCat(kDataEpochs),
                                    "--batch",
                                    "50",
                                    "--snapshot-interval",
                                    "1h",
                                    "--replay-target",
                                    "1h",
                                    "--exit-when-done"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

}  // namespace

TEST_CASE("a push log stays within its budget, by snapshots that are taken early", "[small_disk]") {
  ProcessJob job(Flags({"--log-max-bytes", "67108864"}));
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("one", kLargeModel);
  uint64_t largest = 0;
  while (worker->running()) {
    largest = std::max(largest, BytesBelow(FileSystem::Local(), job.data() + "/log").value_or(0));
    if (worker->Wait(absl::Milliseconds(5)) != -1) break;
  }
  CHECK(worker->Wait(absl::Seconds(60)) == 0);
  CHECK(job.server().Wait(absl::Seconds(60)) == 0);
  INFO(job.ServerLog());
  CHECK(absl::StrContains(job.ServerLog(), "published (log)"));
  CHECK(absl::StrContains(job.ServerLog(), "--log-max-bytes 67108864: a push of this model may have 2"));
  CHECK(largest <= 67108864);
  CHECK(largest > 10'000'000);
  // What is left when a job is done: one segment.
  CHECK(BytesBelow(FileSystem::Local(), job.data() + "/log").value() <= 67108864 / 8);
}

TEST_CASE("a job on a small disk runs to its end", "[small_disk]") {
  ProcessJob job(Flags({}));
  const SmallDisk disk(job.data(), "150m");
  if (!disk.mounted()) {
    WARN("SKIP: a small file system cannot be mounted here (needs root)");
    return;
  }
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("one", kLargeModel);
  CHECK(worker->Wait(absl::Seconds(240)) == 0);
  INFO(job.ServerLog());
  CHECK(job.server().Wait(absl::Seconds(60)) == 0);
  REQUIRE(job.StartServer());
  CHECK(CompletedOnce(*job.Completions(), kDataEpochs, 4000));
}

TEST_CASE("a server whose disk was filled by others starts again when there is room for a snapshot",
          "[small_disk]") {
  ProcessJob job(Flags({"--snapshot-keep", "2"}));
  const SmallDisk disk(job.data(), "150m");
  if (!disk.mounted()) {
    WARN("SKIP: a small file system cannot be mounted here (needs root)");
    return;
  }
  REQUIRE(job.StartServer());
  const auto worker = job.StartWorker("one", kLargeModel);
  REQUIRE(job.SamplesReach(4000));
  job.server().Kill();
  // All but 12 MB: less than a new segment and what goes before it, more than a snapshot.
  const uint64_t free = *FileSystem::Local()->FreeBytes(job.data());
  REQUIRE(free > 12'000'000);
  WriteWholeFile(job.data() + "/others", std::string(free - 12'000'000, 'x'));
  REQUIRE(job.StartServer());
  CHECK(worker->Wait(absl::Seconds(240)) == 0);
  INFO(job.ServerLog());
  CHECK(absl::StrContains(job.ServerLog(), "a snapshot takes its place"));
  CHECK(job.server().Wait(absl::Seconds(60)) == 0);
  REQUIRE(job.StartServer());
  CHECK(CompletedOnce(*job.Completions(), kDataEpochs, 4000));
}

TEST_CASE("a joined server whose disk was filled by others goes on when there is room for little more",
          "[small_disk]") {
  // Less than a new segment and what goes before it; less than a segment's first extent.
  const uint64_t left = GENERATE(10'000'000, 4'000'000);
  CAPTURE(left);
  ServersJob job(2, Flags({}));
  const SmallDisk disk(job.DataOf(1), "100m");
  if (!disk.mounted()) {
    WARN("SKIP: a small file system cannot be mounted here (needs root)");
    return;
  }
  REQUIRE(job.StartAll());
  const auto worker = job.StartWorker("one", kLargeModel);
  REQUIRE(job.SamplesReach(4000));
  job.process(1).Kill();
  const uint64_t free = *FileSystem::Local()->FreeBytes(job.DataOf(1));
  REQUIRE(free > left);
  WriteWholeFile(job.DataOf(1) + "/others", std::string(free - left, 'x'));
  REQUIRE(job.Start(1));
  CHECK(worker->Wait(absl::Seconds(240)) == 0);
  INFO(job.ServerLog() << "\n" << job.LogOf(1));
  CHECK(job.server().Wait(absl::Seconds(60)) == 0);
  REQUIRE(job.StartServer());
  CHECK(CompletedOnce(*job.Completions(), kDataEpochs, 4000));
}

TEST_CASE("a server that has joined a job, and has a small disk, gets its room by snapshots",
          "[small_disk]") {
  std::vector<std::string> flags = Flags({});
  ServersJob job(2, flags);
  const SmallDisk disk(job.DataOf(1), "100m");
  if (!disk.mounted()) {
    WARN("SKIP: a small file system cannot be mounted here (needs root)");
    return;
  }
  REQUIRE(job.StartAll());
  const auto worker = job.StartWorker("one", kLargeModel);
  CHECK(worker->Wait(absl::Seconds(240)) == 0);
  INFO(job.ServerLog() << "\n" << job.LogOf(1));
  CHECK(absl::StrContains(job.ServerLog(), "published (log)"));
  CHECK(job.server().Wait(absl::Seconds(60)) == 0);
  CHECK(job.process(1).Wait(absl::Seconds(60)) == 0);
  REQUIRE(job.StartServer());
  CHECK(CompletedOnce(*job.Completions(), kDataEpochs, 4000));
}

}  // namespace recon
