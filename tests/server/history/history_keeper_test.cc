#include "server/history/history_keeper.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "catch2/catch.hpp"
#include "tests/support/faulty_file_system.h"

namespace recon {

TEST_CASE("requests beyond those that may wait for the history are refused at once", "[history]") {
  FaultyFileSystem files;
  REQUIRE(files.CreateDirectories("/job").ok());
  std::atomic<int> answered{0};
  absl::Notification go_on;
  {
    HistoryKeeper keeper("/job", 7, &files);
    absl::Notification stands;
    keeper.EncodeLater({}, [&](const absl::StatusOr<HistoryReply>&) {  // The keeper's thread stands here.
      stands.Notify();
      go_on.WaitForNotification();
    });
    stands.WaitForNotification();
    for (int i = 0; i < HistoryKeeper::kRequestsMax; ++i) {
      keeper.EncodeLater({}, [&](const absl::StatusOr<HistoryReply>& reply) {
        answered += reply.ok() && reply->history().job_id() == 7 ? 1 : 0;
      });
    }
    absl::Status refused;
    keeper.EncodeLater({}, [&](const absl::StatusOr<HistoryReply>& reply) { refused = reply.status(); });
    CHECK(absl::IsResourceExhausted(refused));
    CHECK(answered == 0);
    go_on.Notify();
  }
  CHECK(answered == HistoryKeeper::kRequestsMax);
}

}  // namespace recon
