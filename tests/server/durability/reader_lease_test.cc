#include "common/snapshot/reader_lease.h"

#include <atomic>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "common/base/clock.h"
#include "common/base/sleep.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/server/durability/sample_state.h"
#include "tests/support/faulty_file_system.h"

namespace recon {
namespace {

// Snapshots of which the two newest are kept, in memory.
struct Fixture {
  FaultyFileSystem files;
  std::unique_ptr<LocalStore> store = *LocalStore::Open("/snapshots", /*writer=*/true, &files);
  ParamLayout layout = *ParamLayout::Create(SampleModel(40));
  SnapshotReader reader{store.get()};
  SnapshotWriter writer{store.get(), KeepTwo()};

  static SnapshotWriter::Options KeepTwo() {
    SnapshotWriter::Options options;
    options.keep.last = 2;
    return options;
  }
  void Write(float value) {
    const auto manifest = writer.Write(layout, SampleCut(layout, value, 5), SampleDescription());
    INFO(manifest.status());
    REQUIRE(manifest.ok());
  }
  std::vector<uint64_t> Generations() const {
    std::vector<uint64_t> numbers;
    const std::vector<Generation> generations = *reader.List();
    for (const Generation generation : generations) numbers.push_back(generation.value());
    return numbers;
  }
};

}  // namespace

TEST_CASE("what is read is not removed, until it is read no more", "[reader_lease]") {
  Fixture f;
  f.Write(1);
  {
    const auto lease = *ReaderLease::Take(f.store.get(), Generation(1));
    for (float value = 2; value <= 4; ++value) f.Write(value);
    REQUIRE(f.writer.CollectGarbage().ok());
    CHECK(f.Generations() == std::vector<uint64_t>{1, 3, 4});
    CHECK(f.reader.Verify(Generation(1), {}).ok());
  }
  CHECK(f.store->List("leases/")->empty());
  REQUIRE(f.writer.CollectGarbage().ok());
  CHECK(f.Generations() == std::vector<uint64_t>{3, 4});
  CHECK(f.store->List("retired/")->empty());
  CHECK(absl::IsNotFound(ReaderLease::Take(f.store.get(), Generation(1)).status()));
  CHECK(f.store->List("leases/")->empty());
}

TEST_CASE("a lease is renewed while it is held, and ends by itself when its reader is dead",
          "[reader_lease]") {
  Fixture f;
  f.Write(1);
  {
    const auto lease = *ReaderLease::Take(f.store.get(), Generation(1), absl::Milliseconds(20));
    const std::string first = f.store->List("leases/")->front();
    const absl::Time deadline = Now() + absl::Seconds(20);
    // Names change with every renewal.
    while (f.store->List("leases/")->back() == first && Now() < deadline) Sleep(absl::Milliseconds(5));
    CHECK(f.store->List("leases/")->back() != first);
  }
  // What a killed reader leaves.
  REQUIRE(f.store->PutIfAbsent(LeaseName(Generation(1), 7), "").ok());
  f.files.Advance(ReaderLease::kDuration - absl::Seconds(1));
  CHECK(LeasedGenerations(f.store.get())->count(Generation(1)) == 1);
  RemoveExpiredLeases(f.store.get());
  CHECK(f.store->List("leases/")->size() == 1);
  f.files.Advance(absl::Seconds(1));
  CHECK(LeasedGenerations(f.store.get())->empty());
  RemoveExpiredLeases(f.store.get());
  CHECK(f.store->List("leases/")->empty());
}

TEST_CASE("a lease lasts by the store's clock, whatever its reader's clock says", "[reader_lease]") {
  Fixture f;
  f.Write(1);
  const absl::Time reader = GENERATE(WallNow() - absl::Hours(1), WallNow() + absl::Hours(1));
  REQUIRE(f.store->PutIfAbsent(LeaseName(Generation(1), 7), absl::StrCat(absl::ToUnixMillis(reader))).ok());
  for (float value = 2; value <= 4; ++value) f.Write(value);
  REQUIRE(f.writer.CollectGarbage().ok());
  CHECK(f.Generations() == std::vector<uint64_t>{1, 3, 4});
  CHECK(f.reader.Verify(Generation(1), {}).ok());
  f.files.Advance(ReaderLease::kDuration);
  REQUIRE(f.writer.CollectGarbage().ok());
  CHECK(f.Generations() == std::vector<uint64_t>{3, 4});
  CHECK(f.store->List("leases/")->empty());
}

TEST_CASE("rubbish is no lease", "[reader_lease]") {
  Fixture f;
  f.Write(1);
  REQUIRE(f.store->PutIfAbsent("leases/LEASE-one", "99999999999999").ok());
  REQUIRE(f.store->PutIfAbsent("leases/LEASE-1-2", "99999999999999").ok());
  CHECK(LeasedGenerations(f.store.get())->empty());
}

TEST_CASE("a mark refuses readers, and one that a killed collector left is removed", "[reader_lease]") {
  Fixture f;
  f.Write(1);
  f.Write(2);
  REQUIRE(f.store->PutIfAbsent(RetiredName(Generation(1)), "").ok());
  CHECK(absl::IsFailedPrecondition(ReaderLease::Take(f.store.get(), Generation(1)).status()));
  CHECK(*ReaderLease::TakeIfWritable(f.store.get(), Generation(1)) == nullptr);
  REQUIRE(f.writer.CollectGarbage().ok());
  CHECK(f.Generations() == std::vector<uint64_t>{1, 2});
  CHECK(ReaderLease::Take(f.store.get(), Generation(1)).ok());
}

TEST_CASE("collector and readers race: whoever got a lease reads all of its generation", "[reader_lease]") {
  Fixture f;
  f.Write(0);
  std::atomic<bool> done{false};
  std::atomic<int> read{0}, refused{0}, failed{0};
  const auto read_oldest = [&] {
    while (!done) {
      const std::vector<Generation> generations = *f.reader.List();
      if (generations.empty()) continue;
      const auto lease = ReaderLease::Take(f.store.get(), generations.front());
      if (!lease.ok()) {
        absl::IsNotFound(lease.status()) || absl::IsFailedPrecondition(lease.status()) ? ++refused : ++failed;
        continue;
      }
      f.reader.Verify(generations.front(), {}).ok() ? ++read : ++failed;
    }
  };
  std::thread one(read_oldest), two(read_oldest);
  for (float value = 1; value <= 150; ++value) {
    f.Write(value);
    const absl::Status collected = f.writer.CollectGarbage();
    INFO(collected);
    CHECK(collected.ok());
  }
  done = true;
  one.join();
  two.join();
  INFO(read << " read, " << refused << " refused");
  CHECK(failed == 0);
  CHECK(read > 20);
  REQUIRE(f.writer.CollectGarbage().ok());
  CHECK(f.Generations() == std::vector<uint64_t>{150, 151});
  CHECK(f.store->List("leases/")->empty());
  CHECK(f.store->List("retired/")->empty());
  CHECK(f.store->List("packs/")->size() <= 4);
}

}  // namespace recon
