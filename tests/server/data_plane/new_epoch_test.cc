#include <memory>
#include <thread>

#include "catch2/catch.hpp"
#include "tests/server/data_plane/small_job.h"
#include "tests/support/faulty_file_system.h"

namespace recon {

TEST_CASE("a push that is on its way into the log when an epoch begins is to be sent again",
          "[param_server]") {
  FaultyFileSystem files;
  REQUIRE(files.CreateDirectories("/log").ok());
  const int bound = GENERATE(0, 1);
  SmallJob job(bound);
  PushLog::Options options;
  options.directory = "/log";
  options.segment_bytes = 1 << 20;
  job.server().log()->Set(
      *PushLog::Open(options, &files, job.server().rules(), job.server().position().sequence + 1));
  job.server().log()->NoteSnapshot(1);
  // The log's thread stands still until the epoch has begun.
  Notification reached;
  Notification go_on;
  std::thread recorder([&] {
    const absl::Status recorded = job.server().RecordControl({"record"}, [&](uint64_t) {
      reached.Notify();
      go_on.WaitForNotification();
    });
    CHECK(recorded.ok());
  });
  reached.WaitForNotification();
  // Nobody else pushes: it would wait.
  const auto push = job.Push(1, static_cast<uint64_t>(bound), 1);
  CHECK_FALSE(Done(push));
  job.server().SetClusterEpoch(SmallJob::kEpoch + 1);
  go_on.Notify();
  recorder.join();
  const absl::Status answered = Await(push);
  CHECK(absl::IsUnavailable(answered));
  CHECK(answered.message() == "a new cluster epoch has begun; ask again");
}

}  // namespace recon
