#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "tests/integration/completed_once.h"
#include "tests/integration/process_job.h"
#include "tests/support/process.h"
#include "tests/support/swift_server.h"
#include "tests/support/webhdfs_test_server.h"

namespace recon {
namespace {

constexpr uint64_t kSamples = 4000;

// reconctl of a store: its output.
std::string Reconctl(std::vector<std::string> arguments, const SwiftServer& swift, int expected = 0) {
  arguments.insert(arguments.begin(), "reconctl");
  const TempDir directory;
  Process process(arguments, directory / "log", swift.Environment());
  CHECK(process.Wait(absl::Seconds(60)) == expected);
  return process.output();
}

std::vector<std::string> JobFlags(const std::string& url, int data_epochs) {
  return {"--data-epochs",       absl::StrCat(data_epochs),
          "--split-samples",     "200",
          "--snapshot-interval", "300ms",
          "--snapshot-dir",      url};
}

}  // namespace

TEST_CASE("a job whose snapshots are in a bucket goes on when its machine is gone", "[s3]") {
  SwiftServer swift;
  REQUIRE(swift.Start());
  const std::string url = "s3://recon/jobs/one";
  ProcessJob job(JobFlags(url, 8));
  REQUIRE(job.StartServer(swift.Environment()));
  auto one = job.StartWorker("one");
  auto two = job.StartWorker("two");
  REQUIRE(job.SamplesReach(kSamples));
  REQUIRE(Eventually([&] { return job.Status()->snapshot().generation() >= 2; }));
  job.server().Kill();
  const std::string lost = job.directory() / "lost";
  std::filesystem::rename(job.data(), lost);
  REQUIRE(job.StartServer(swift.Environment()));
  CHECK(job.Status()->restored_generation() >= 2);
  REQUIRE(job.Finished());
  CHECK(CompletedOnce(*job.Completions(), 8, kSamples));
  job.server().Signal(SIGTERM);
  CHECK(job.server().Wait(absl::Seconds(60)) == 0);

  CHECK(absl::StrContains(Reconctl({"snapshot", "verify", url}, swift), ": ok"));
  CHECK(absl::StrContains(Reconctl({"snapshot", "list", url}, swift), "mlp:16-24-4"));
  const TempDir directory;
  Reconctl({"snapshot", "export", url, "--output", directory / "model.safetensors"}, swift);
  CHECK(std::filesystem::file_size(directory / "model.safetensors") > 500 * sizeof(float));
  Reconctl({"snapshot", "import", directory / "model.safetensors", "--output", "s3://recon/imported"}, swift);
  CHECK(absl::StrContains(Reconctl({"snapshot", "verify", "s3://recon/imported"}, swift), ": ok"));
  Reconctl({"snapshot", "import", directory / "model.safetensors", "--output", url}, swift, 1);
  Reconctl({"snapshot", "pin", url, "1000000"}, swift, 5);
  // Nobody can see whether a server runs.
  CHECK(absl::StrContains(Reconctl({"snapshot", "prune", url, "--keep-last", "2"}, swift, 1), "--no-server"));
  Reconctl({"snapshot", "prune", url, "--keep-last", "2", "--no-server"}, swift);

  // The machine that was thought lost comes back.
  std::filesystem::remove_all(job.data());
  std::filesystem::rename(lost, job.data());
  CHECK_FALSE(job.StartServer(swift.Environment()));
  CHECK(absl::StrContains(job.ServerLog(), "another server has taken the job over"));
  ProcessJob wrong(JobFlags(url, 1));
  CHECK_FALSE(wrong.StartServer({"AWS_ACCESS_KEY_ID=test:tester", "AWS_SECRET_ACCESS_KEY=guessed",
                                 "AWS_ENDPOINT_URL=" + swift.endpoint()}));
  CHECK(absl::StrContains(wrong.ServerLog(), "SignatureDoesNotMatch"));
}

TEST_CASE("a bucket that is away for a while costs snapshots, not training", "[hdfs]") {
  WebHdfsTestServer hdfs;
  ProcessJob job(JobFlags("webhdfs://" + hdfs.address() + "/recon/job", 6));
  REQUIRE(job.StartServer());
  auto one = job.StartWorker("one");
  REQUIRE(Eventually([&] { return job.Status()->snapshot().generation() >= 1; }));
  hdfs.Fail("CREATE", WebHdfsTestServer::Fault::kDropBefore, 1'000'000);
  const uint64_t samples = job.Status()->samples_completed();
  const uint64_t before = job.Status()->snapshot().generation();
  REQUIRE(job.SamplesReach(samples + kSamples));
  hdfs.FailNoMore();
  REQUIRE(job.Finished());
  REQUIRE(Eventually([&] { return job.Status()->snapshot().generation() > before; }));
  CHECK(CompletedOnce(*job.Completions(), 6, kSamples));
  // A store that does not answer is no reason to fall back on an older snapshot, or on none.
  job.server().Kill();
  for (const char* part : {"", "/manifests/", "/packs/"}) {
    INFO(part);
    hdfs.Fail("OPEN", WebHdfsTestServer::Fault::kDropBefore, 1'000'000, part);
    CHECK_FALSE(job.StartServer({"RECON_STORE_PATIENCE=1s"}));
    CHECK(job.server().Wait(absl::Seconds(60)) != 0);
    CHECK_FALSE(absl::StrContains(job.ServerLog(), "falling back"));
  }
  hdfs.FailNoMore();
  REQUIRE(job.StartServer());
  CHECK(job.Status()->restored_generation() >= before);
}

}  // namespace recon
