#include "server/dashboard/dashboard.h"

#include <thread>

#include "absl/synchronization/notification.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/storage/http_client.h"
#include "tests/server/history/simulated_status.h"
#include "tests/support/faulty_file_system.h"

namespace recon {
namespace {

// A store on another machine that does not answer until it may.
class SilentStore final : public ObjectStore {
 public:
  ~SilentStore() override { ended_.Notify(); }
  absl::StatusOr<std::vector<std::string>> List(const std::string&) override {
    if (!asked_.HasBeenNotified()) asked_.Notify();
    may_answer_.WaitForNotification();
    return absl::UnavailableError("it does not answer");
  }
  absl::StatusOr<std::unique_ptr<Writer>> Create(const std::string&) override { return Silent(); }
  absl::Status PutIfAbsent(const std::string&, absl::string_view) override { return Silent(); }
  absl::StatusOr<uint64_t> Size(const std::string&) override { return Silent(); }
  absl::StatusOr<absl::Duration> Age(const std::string&) override { return Silent(); }
  absl::Status ReadInto(const std::string&, uint64_t, uint64_t, char*) override { return Silent(); }
  absl::Status Delete(const std::string&) override { return Silent(); }
  absl::Status RemoveLeftovers(const std::vector<std::string>&) override { return Silent(); }
  std::string Describe() const override { return "silent"; }

  absl::Notification& asked() { return asked_; }
  absl::Notification& may_answer() { return may_answer_; }

  explicit SilentStore(absl::Notification* ended) : ended_(*ended) {}

 private:
  static absl::Status Silent() { return absl::UnavailableError("it does not answer"); }
  absl::Notification asked_, may_answer_;
  absl::Notification& ended_;
};

}  // namespace

TEST_CASE("nobody who takes the job away waits for a store that does not answer", "[dashboard]") {
  FaultyFileSystem files;
  REQUIRE(files.CreateDirectories("/job").ok());
  HistoryKeeper keeper("/job", 7, &files);
  SimulatedStatus job(2);
  keeper.Note(*job.At(1), Now(), WallNow());
  absl::Notification ended, detached;
  auto store = std::make_shared<SilentStore>(&ended);
  auto dashboard = Dashboard::Start("127.0.0.1:0", TlsFlags());
  REQUIRE(dashboard.ok());
  (*dashboard)->Attach(&keeper, store, nullptr);
  HttpClient client({});
  HttpRequest request;
  request.url = (*dashboard)->url() + "api/snapshots";
  REQUIRE(client.Send(request)->status == 200);
  store->asked().WaitForNotification();
  std::thread owner([&] {
    (*dashboard)->Detach();
    detached.Notify();
  });
  CHECK(detached.WaitForNotificationWithTimeout(absl::Minutes(1)));
  // It shows nothing, and the next job as soon as there is one.
  CHECK(client.Send(request)->status == 503);
  (*dashboard)->Attach(&keeper, nullptr, nullptr);
  CHECK(client.Send(request)->status == 200);
  CHECK_FALSE(ended.HasBeenNotified());
  store->may_answer().Notify();
  owner.join();
  store = nullptr;
  ended.WaitForNotification();
}

}  // namespace recon
