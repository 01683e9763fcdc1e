#include "server/dashboard/snapshot_view.h"

#include <functional>
#include <memory>
#include <thread>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/snapshot/manifest.h"
#include "common/storage/local_store.h"
#include "nlohmann/json.hpp"
#include "tests/server/durability/sample_state.h"
#include "tests/support/faulty_file_system.h"

namespace recon {
namespace {

using Json = nlohmann::json;

// Three snapshots in memory, and a view of them.
class ViewedSnapshots {
 public:
  ViewedSnapshots() : store_(*LocalStore::Open("/snapshots", /*writer=*/true, &files_)) {
    const ParamLayout layout = *ParamLayout::Create(SampleModel());
    SnapshotWriter writer(store_.get(), {});
    for (uint64_t version = 1; version <= 3; ++version)
      REQUIRE(
          writer.Write(layout, SampleCut(layout, static_cast<float>(version), 5), SampleDescription()).ok());
    view_ = std::make_unique<SnapshotView>(store_);
  }

  std::string Path(uint64_t generation) const { return "/snapshots/" + ManifestName(Generation(generation)); }
  FaultyFileSystem* files() { return &files_; }
  SnapshotView* view() { return view_.get(); }

  // What the view says once it says `what`. It is asked as if half a minute passed each time.
  Json Until(const std::function<bool(const Json&)>& what) {
    while (true) {
      Json json = Json::parse(view_->Json(3, now_));
      if (what(json)) return json;
      now_ += absl::Seconds(30);
      std::this_thread::yield();
    }
  }
  Json Looked() {
    return Until([](const Json& json) { return !json["loading"].get<bool>(); });
  }

 private:
  FaultyFileSystem files_;
  const std::shared_ptr<ObjectStore> store_;
  std::unique_ptr<SnapshotView> view_;
  absl::Time now_ = Now();
};

}  // namespace

TEST_CASE("a damaged manifest is shown as that, and hides no other snapshot", "[dashboard]") {
  ViewedSnapshots snapshots;
  const std::string good = snapshots.files()->Content(snapshots.Path(2));
  std::string bad = good;
  bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
  snapshots.files()->SetContent(snapshots.Path(2), bad);
  const Json json = snapshots.Looked();
  CHECK(json["error"] == "");
  REQUIRE(json["snapshots"].size() == 3);
  for (const int whole : {0, 2}) {
    CHECK(json["snapshots"][whole]["generation"] == 3 - whole);
    CHECK(json["snapshots"][whole]["stored_bytes"] > 0);
    CHECK_FALSE(json["snapshots"][whole].contains("error"));
  }
  const Json& damaged = json["snapshots"][1];
  CHECK(damaged["generation"] == 2);
  CHECK(absl::StrContains(damaged["error"].get<std::string>(), "MANIFEST-0000000000000002: "));
  CHECK_FALSE(damaged.contains("state_root"));
  CHECK_FALSE(damaged.contains("stored_bytes"));
  // Once it is mended it is one like the others.
  snapshots.files()->SetContent(snapshots.Path(2), good);
  snapshots.Until([](const Json& now) { return !now["snapshots"][1].contains("error"); });
}

TEST_CASE("verifying a snapshot whose manifest is damaged says so", "[dashboard]") {
  ViewedSnapshots snapshots;
  snapshots.files()->SetContent(snapshots.Path(3), "RECON");
  REQUIRE(snapshots.view()->Verify(3).ok());
  const Json json = snapshots.Until([](const Json& now) { return now["verify"]["running"] == false; });
  CHECK(json["verify"]["ok"] == false);
  CHECK(absl::StrContains(json["verify"]["error"].get<std::string>(), "MANIFEST-0000000000000003: "));
  REQUIRE(snapshots.view()->Verify(1).ok());
  const Json whole = snapshots.Until([](const Json& now) { return now["verify"]["running"] == false; });
  CHECK(whole["verify"]["ok"] == true);
  CHECK(whole["verify"]["done"] == whole["verify"]["chunks"]);
}

}  // namespace recon
