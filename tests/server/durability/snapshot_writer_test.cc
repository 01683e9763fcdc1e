#include "server/durability/snapshot_writer.h"

#include <filesystem>
#include <memory>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/snapshot/manifest.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "server/durability/recovery.h"
#include "tests/server/durability/sample_state.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

// A store on a disk that gets full after some bytes.
class FullStore : public ObjectStore {
 public:
  FullStore(ObjectStore* real, int64_t room) : real_(real), room_(room) {}

  absl::StatusOr<std::unique_ptr<Writer>> Create(const std::string& name) override {
    auto writer = real_->Create(name);
    if (!writer.ok()) return writer.status();
    return std::unique_ptr<Writer>(new FullWriter(*std::move(writer), &room_));
  }
  absl::Status PutIfAbsent(const std::string& name, absl::string_view bytes) override {
    room_ -= static_cast<int64_t>(bytes.size());
    return room_ < 0 ? absl::ResourceExhaustedError("disk full") : real_->PutIfAbsent(name, bytes);
  }
  absl::StatusOr<uint64_t> Size(const std::string& name) override { return real_->Size(name); }
  absl::StatusOr<std::string> Read(const std::string& name, uint64_t offset, uint64_t size) override {
    return real_->Read(name, offset, size);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& prefix) override {
    return real_->List(prefix);
  }
  absl::Status Delete(const std::string& name) override { return real_->Delete(name); }
  std::string Describe() const override { return "full " + real_->Describe(); }

 private:
  class FullWriter : public Writer {
   public:
    FullWriter(std::unique_ptr<Writer> real, int64_t* room) : real_(std::move(real)), room_(room) {}
    absl::Status Append(absl::string_view bytes) override {
      *room_ -= static_cast<int64_t>(bytes.size());
      return *room_ < 0 ? absl::ResourceExhaustedError("disk full") : real_->Append(bytes);
    }
    absl::Status Close() override { return real_->Close(); }

   private:
    std::unique_ptr<Writer> real_;
    int64_t* room_;
  };

  ObjectStore* real_;
  int64_t room_;
};

struct Fixture {
  TempDir directory;
  std::unique_ptr<LocalStore> store = *LocalStore::Open(directory.path(), /*writer=*/true);
  ParamLayout layout = *ParamLayout::Create(SampleModel());
  SnapshotReader reader{store.get()};

  Manifest Write(float value, int keep = 5) {
    SnapshotWriter::Options options;
    options.keep_last = keep;
    SnapshotWriter writer(store.get(), options);
    auto manifest = writer.Write(layout, SampleCut(layout, value, 5), SampleDescription());
    REQUIRE(manifest.ok());
    REQUIRE(writer.CollectGarbage().ok());
    return *manifest;
  }
  size_t Files() { return store->List("")->size(); }
  std::string PathOf(const std::string& name) { return directory / name; }
};

void FlipByte(const std::string& path, size_t at) {
  std::string bytes = ReadWholeFile(path);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  WriteWholeFile(path, bytes);
}

}  // namespace

TEST_CASE("a snapshot is read back as it was written, ledger and all", "[snapshot]") {
  Fixture f;
  const Manifest written = f.Write(2.5f);
  const auto manifest = f.reader.ReadManifest(Generation(1));
  REQUIRE(manifest.ok());
  CHECK(manifest->sequence() == 11);
  CHECK(manifest->frontier_step() == 5);
  CHECK(manifest->shards(1).version() == 5);
  CHECK(manifest->shards(1).ledger(0).incarnation() == 77);
  for (int i = 0; i < manifest->chunks_size(); ++i) {
    const auto pages = f.reader.ReadChunk(*manifest, i);
    REQUIRE(pages.ok());
    CHECK((*pages)[0].data()[7] == 9.5f);
  }
  CHECK(f.reader.Verify(Generation(1), {}).ok());
  CHECK(absl::IsNotFound(f.reader.Verify(Generation(2), {})));
}

TEST_CASE("equal states have equal roots, other states others", "[snapshot]") {
  Fixture f;
  const std::string root = f.Write(1).state_root();
  CHECK(f.Write(1).state_root() == root);
  CHECK(f.Write(2).state_root() != root);
}

TEST_CASE("the newest N snapshots are kept, with their packs and no others", "[snapshot]") {
  Fixture f;
  for (int i = 1; i <= 5; ++i) f.Write(static_cast<float>(i), /*keep=*/2);
  CHECK(*f.reader.List() == std::vector<Generation>{Generation(4), Generation(5)});
  CHECK(f.Files() == 4);
  // A pack without a manifest, as a crash leaves it, and a file that is not ours.
  WriteWholeFile(f.PathOf(PackName(Generation(9), 0)), "orphan");
  WriteWholeFile(f.PathOf("packs/README"), "hands off");
  f.Write(6, /*keep=*/2);
  CHECK(f.Files() == 5);
  CHECK(f.reader.Verify(Generation(6), {}).ok());
}

TEST_CASE("a full disk publishes nothing, leaves nothing and keeps the snapshot before", "[snapshot]") {
  Fixture f;
  f.Write(1);
  const size_t files = f.Files();
  const int64_t needed = static_cast<int64_t>(*f.store->Size(PackName(Generation(1), 0)));
  for (const int64_t room : {int64_t{0}, int64_t{1000}, needed - 1, needed + 10}) {
    FullStore full(f.store.get(), room);
    SnapshotWriter writer(&full, {});
    const auto manifest = writer.Write(f.layout, SampleCut(f.layout, 1, 5), SampleDescription());
    CHECK(absl::IsResourceExhausted(manifest.status()));
    CHECK(f.Files() == files);
    CHECK(f.reader.Verify(Generation(1), {}).ok());
  }
}

TEST_CASE("a damaged snapshot is named by verify and skipped by recovery", "[snapshot]") {
  Fixture f;
  f.Write(1);
  f.Write(2);
  std::string victim;
  SECTION("a byte of a pack") {
    victim = PackName(Generation(2), 0);
    FlipByte(f.PathOf(victim), 500);
  }
  SECTION("a pack cut short") {
    victim = PackName(Generation(2), 0);
    const std::string bytes = ReadWholeFile(f.PathOf(victim));
    WriteWholeFile(f.PathOf(victim), bytes.substr(0, bytes.size() - 1));
  }
  SECTION("a pack that is gone") {
    victim = PackName(Generation(2), 0);
    std::filesystem::remove(f.PathOf(victim));
  }
  SECTION("a byte of the manifest") {
    victim = ManifestName(Generation(2));
    FlipByte(f.PathOf(victim), 100);
  }
  const absl::Status verified = f.reader.Verify(Generation(2), {});
  CHECK(absl::IsDataLoss(verified));
  CHECK(absl::StrContains(verified.message(), victim));
  CHECK(f.reader.Verify(Generation(1), {}).ok());

  const auto load = [&](const Manifest& manifest) {
    return f.reader.Verify(Generation(manifest.generation()), {});
  };
  const auto loaded = LoadNewest(f.reader, load);
  REQUIRE(loaded.ok());
  CHECK((*loaded)->generation() == 1);
  // The next snapshot gets a number of its own.
  CHECK(f.Write(3).generation() == 3);
}

TEST_CASE("if nothing verifies, recovery says so instead of starting afresh", "[snapshot]") {
  Fixture f;
  const auto verify = [&](const Manifest& manifest) {
    return f.reader.Verify(Generation(manifest.generation()), {});
  };
  CHECK_FALSE((*LoadNewest(f.reader, verify)).has_value());
  f.Write(1);
  FlipByte(f.PathOf(ManifestName(Generation(1))), 100);
  CHECK(absl::IsDataLoss(LoadNewest(f.reader, verify).status()));
}

TEST_CASE("a wrong flag ends recovery; it is no damage to fall back from", "[snapshot]") {
  Fixture f;
  f.Write(1);
  f.Write(2);
  int tried = 0;
  const auto refuse = [&](const Manifest&) {
    ++tried;
    return absl::FailedPreconditionError("--optimizer is another");
  };
  CHECK(absl::IsFailedPrecondition(LoadNewest(f.reader, refuse).status()));
  CHECK(tried == 1);
}

}  // namespace recon
