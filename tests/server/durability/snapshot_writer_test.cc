#include "server/durability/snapshot_writer.h"

#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/snapshot/manifest.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "server/durability/recovery.h"
#include "tests/server/durability/sample_state.h"
#include "tests/support/faulty_file_system.h"
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
  absl::StatusOr<absl::Duration> Age(const std::string& name) override { return real_->Age(name); }
  absl::Status ReadInto(const std::string& name, uint64_t offset, uint64_t size, char* out) override {
    return real_->ReadInto(name, offset, size, out);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& prefix) override {
    return real_->List(prefix);
  }
  absl::Status Delete(const std::string& name) override { return real_->Delete(name); }
  absl::Status RemoveLeftovers(const std::vector<std::string>&) override { return absl::OkStatus(); }
  std::string Describe() const override { return "full " + real_->Describe(); }

 private:
  class FullWriter : public Writer {
   public:
    FullWriter(std::unique_ptr<Writer> real, std::atomic<int64_t>* room)
        : real_(std::move(real)), room_(room) {}
    absl::Status Append(absl::string_view bytes) override {
      *room_ -= static_cast<int64_t>(bytes.size());
      return *room_ < 0 ? absl::ResourceExhaustedError("disk full") : real_->Append(bytes);
    }
    absl::Status Close() override { return real_->Close(); }

   private:
    std::unique_ptr<Writer> real_;
    std::atomic<int64_t>* room_;
  };

  ObjectStore* real_;
  std::atomic<int64_t> room_;
};

struct Fixture {
  TempDir directory;
  std::unique_ptr<LocalStore> store = *LocalStore::Open(directory.path(), /*writer=*/true);
  ParamLayout layout = *ParamLayout::Create(SampleModel());
  SnapshotReader reader{store.get()};

  Manifest Write(float value, int keep = 5) {
    SnapshotWriter::Options options;
    options.keep.last = keep;
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
  // Both shards have the same one.
  CHECK(manifest->ledgers_size() == 1);
  CHECK(LedgerOf(*manifest, 1).entries(0).incarnation() == 77);
  for (int i = 0; i < manifest->chunks_size(); ++i) {
    const auto pages = f.reader.ReadChunk(*manifest, i);
    REQUIRE(pages.ok());
    CHECK((*pages)[0].data()[7] == 9.5f);
  }
  CHECK(f.reader.Verify(Generation(1), {}).ok());
  CHECK(absl::IsNotFound(f.reader.Verify(Generation(2), {})));
}

TEST_CASE("shards whose ledgers differ keep their own, whichever server's part they come in", "[snapshot]") {
  Fixture f;
  SnapshotWriter::Options options;
  options.shared = true;
  SnapshotWriter writer(f.store.get(), options);
  // A part for each server: all shards but one, which has a ledger of its own, and that one.
  const auto part_of = [&](bool last) {
    std::vector<ShardCut> cut = SampleCut(f.layout, 1, 5);
    REQUIRE(cut.size() == 2);
    cut.back().ledger[0].set_incarnation(78);
    for (size_t i = 0; i < cut.size(); ++i) {
      if ((i + 1 == cut.size()) != last) cut[i].pages.clear();
    }
    return *writer.WritePart(f.layout, std::move(cut), Generation(1), last, SnapshotWriter::Pace::kNow);
  };
  std::vector<Manifest> parts = {part_of(true), part_of(false)};
  std::vector<Manifest> wrong = parts;
  wrong[0].mutable_shards(0)->set_ledger(1);
  CHECK(absl::IsInternal(writer.Publish(f.layout, SampleDescription(), Generation(1), wrong).status()));
  REQUIRE(writer.Publish(f.layout, SampleDescription(), Generation(1), parts).ok());
  const auto manifest = f.reader.ReadManifest(Generation(1));
  REQUIRE(manifest.ok());
  CHECK(manifest->ledgers_size() == 2);
  for (uint32_t shard = 0; shard < f.layout.shard_count(); ++shard) {
    const bool last = shard + 1 == f.layout.shard_count();
    CHECK(LedgerOf(*manifest, shard).entries(0).incarnation() == (last ? 78 : 77));
  }
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

TEST_CASE("two writers that share a store leave each other's packs alone", "[snapshot]") {
  Fixture f;
  SnapshotWriter::Options options;
  options.shared = true;
  SnapshotWriter one(f.store.get(), options), two(f.store.get(), options);
  REQUIRE(one.Write(f.layout, SampleCut(f.layout, 1, 5), SampleDescription()).ok());
  REQUIRE(two.Write(f.layout, SampleCut(f.layout, 2, 5), SampleDescription()).ok());
  const Generation third(3);
  const auto of_one =
      one.WritePart(f.layout, SampleCut(f.layout, 3, 6), third, 0, SnapshotWriter::Pace::kNow);
  const auto of_two =
      two.WritePart(f.layout, SampleCut(f.layout, 4, 6), third, 0, SnapshotWriter::Pace::kNow);
  REQUIRE(of_one.ok());
  REQUIRE(of_two.ok());
  one.RemoveUnpublished();
  REQUIRE(one.CollectGarbage().ok());
  const auto published = two.Publish(f.layout, SampleDescription(), third, {*of_two});
  REQUIRE(published.ok());
  CHECK(f.reader.Verify(third, {}).ok());
  const auto late = one.WritePart(f.layout, SampleCut(f.layout, 5, 6), third, 0, SnapshotWriter::Pace::kNow);
  CHECK(absl::IsAlreadyExists(one.Publish(f.layout, SampleDescription(), third, {*late}).status()));
  one.RemoveUnpublished();
  CHECK(f.reader.Verify(third, {}).ok());
  REQUIRE(two.CollectGarbage().ok());
  CHECK(f.store->List("packs/")->size() == 3);
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

TEST_CASE("pages that have not changed stay where they are, as long as anybody needs them", "[snapshot]") {
  Fixture f;
  SnapshotWriter::Options options;
  options.keep.last = 6;
  SnapshotWriter writer(f.store.get(), options);
  const std::vector<ShardCut> one = SampleCut(f.layout, 1, 5);
  std::vector<ShardCut> two = SampleCut(f.layout, 1, 5);
  two[1] = SampleCut(f.layout, 2, 5)[1];
  const auto write = [&](const std::vector<ShardCut>& cut) {
    const auto manifest = writer.Write(f.layout, cut, SampleDescription());
    REQUIRE(manifest.ok());
    REQUIRE(writer.CollectGarbage().ok());
    REQUIRE(f.reader.Verify(Generation(manifest->generation()), {}).ok());
    return *manifest;
  };
  const Manifest first = write(one);
  CHECK(SizesOf(first).own == SizesOf(first).stored);
  const Manifest second = write(two);
  CHECK(SizesOf(second).own < SizesOf(second).stored / 100);  // The shard of the bias.
  CHECK(second.packs_size() == 2);
  const Manifest third = write(two);
  CHECK(SizesOf(third).own == 0);
  CHECK(third.packs_size() == 2);
  CHECK(third.state_root() == second.state_root());
  CHECK(SizesOf(write(two)).own == 0);
  // Not all snapshots hang on one file.
  const Manifest fifth = write(two);
  CHECK(SizesOf(fifth).own > SizesOf(fifth).stored / 2);
  write(two);
  write(two);
  // The first generation is gone; its pack is not, until nobody refers to it.
  CHECK(f.reader.List()->front() == Generation(2));
  CHECK(f.store->List("packs/")->front() == PackName(Generation(1), 0));
  const std::vector<ShardCut> other = SampleCut(f.layout, 7, 5);
  for (int i = 8; i <= 13; ++i) write(other);
  CHECK(*f.store->List("packs/") ==
        std::vector<std::string>{PackName(Generation(8), 0), PackName(Generation(12), 0)});
}

TEST_CASE("a pack that is gone or cut short is not referred to, and no generation has a number twice",
          "[snapshot]") {
  Fixture f;
  SnapshotWriter writer(f.store.get(), {});
  const std::vector<ShardCut> cut = SampleCut(f.layout, 1, 5);
  const auto write = [&] {
    const auto manifest = writer.Write(f.layout, cut, SampleDescription());
    REQUIRE(manifest.ok());
    REQUIRE(f.reader.Verify(Generation(manifest->generation()), {}).ok());
    return *manifest;
  };
  write();
  std::filesystem::resize_file(f.PathOf(PackName(Generation(1), 0)), 100);
  CHECK(SizesOf(write()).own > 0);
  CHECK(SizesOf(write()).own == 0);
  std::filesystem::remove(f.PathOf(ManifestName(Generation(3))));
  const Manifest fourth = write();
  CHECK(fourth.generation() == 4);
  CHECK(SizesOf(fourth).own > 0);
}

TEST_CASE("what cannot be read is not taken for damaged: nothing is removed", "[snapshot]") {
  FaultyFileSystem files;
  const auto store = *LocalStore::Open("/snapshots", /*writer=*/true, &files);
  const ParamLayout layout = *ParamLayout::Create(SampleModel(/*side=*/4));
  SnapshotWriter::Options options;
  options.keep.last = 2;
  SnapshotWriter writer(store.get(), options);
  for (int i = 0; i < 4; ++i) {
    REQUIRE(writer.Write(layout, SampleCut(layout, static_cast<float>(i), 5), SampleDescription()).ok());
  }
  const size_t objects = store->List("")->size();
  int failed = 0;
  for (int call = 1; call <= 8; ++call) {
    files.FailCall(call, FaultyFileSystem::Fault::kIoError, /*for_good=*/false);
    failed += writer.Expired().ok() ? 0 : 1;
    files.FailNothing();
  }
  CHECK(failed == 8);
  files.FailCall(4, FaultyFileSystem::Fault::kIoError, /*for_good=*/false);
  CHECK_FALSE(writer.CollectGarbage().ok());
  files.FailNothing();
  CHECK(store->List("")->size() == objects);
  REQUIRE(writer.CollectGarbage().ok());
  CHECK(store->List("")->size() == 4);
}

TEST_CASE("a pack of which little is of use is not referred to any more", "[snapshot]") {
  Fixture f;
  SnapshotWriter writer(f.store.get(), {});
  REQUIRE(writer.Write(f.layout, SampleCut(f.layout, 1, 5), SampleDescription()).ok());
  std::vector<ShardCut> cut = SampleCut(f.layout, 2, 5);
  cut[1] = SampleCut(f.layout, 1, 5)[1];  // The same small shard.
  const auto manifest = writer.Write(f.layout, cut, SampleDescription());
  REQUIRE(manifest.ok());
  CHECK(manifest->packs_size() == 1);
  CHECK(SizesOf(*manifest).own == SizesOf(*manifest).stored);
}

TEST_CASE("a new process keeps what it restored until two newer ones are there", "[snapshot]") {
  Fixture f;
  for (int i = 1; i <= 4; ++i) f.Write(static_cast<float>(i));
  SnapshotWriter::Options options;
  options.keep.last = 2;
  SnapshotWriter writer(f.store.get(), options);
  // 3 and 4 were found damaged.
  writer.NoteRestored(*f.reader.ReadManifest(Generation(2)));
  const auto write = [&](float value) {
    const auto manifest = writer.Write(f.layout, SampleCut(f.layout, value, 5), SampleDescription());
    REQUIRE(manifest.ok());
    REQUIRE(writer.CollectGarbage().ok());
    return *manifest;
  };
  write(2);
  CHECK(*f.reader.List() == std::vector<Generation>{Generation(2), Generation(4), Generation(5)});
  write(9);
  CHECK(*f.reader.List() == std::vector<Generation>{Generation(5), Generation(6)});
  CHECK(f.reader.Verify(Generation(5), {}).ok());
}

TEST_CASE("a new process refers to what it restored", "[snapshot]") {
  Fixture f;
  SnapshotWriter writer(f.store.get(), {});
  writer.NoteRestored(f.Write(1));
  const auto manifest = writer.Write(f.layout, SampleCut(f.layout, 1, 5), SampleDescription());
  REQUIRE(manifest.ok());
  CHECK(SizesOf(*manifest).own == 0);
}

TEST_CASE("a pinned snapshot stays", "[snapshot]") {
  Fixture f;
  f.Write(1, /*keep=*/2);
  REQUIRE(f.store->PutIfAbsent(PinName(Generation(1)), "").ok());
  for (int i = 2; i <= 4; ++i) f.Write(static_cast<float>(i), /*keep=*/2);
  CHECK(*f.reader.List() == std::vector<Generation>{Generation(1), Generation(3), Generation(4)});
  REQUIRE(f.store->Delete(PinName(Generation(1))).ok());
  f.Write(5, /*keep=*/2);
  CHECK(*f.reader.List() == std::vector<Generation>{Generation(4), Generation(5)});
}

TEST_CASE("every byte of a manifest and a pack flipped, and every length: the one before is taken",
          "[snapshot]") {
  FaultyFileSystem files;
  const auto store = *LocalStore::Open("/snapshots", /*writer=*/true, &files);
  const SnapshotReader reader(store.get());
  const ParamLayout layout = *ParamLayout::Create(SampleModel(/*side=*/4));
  SnapshotWriter writer(store.get(), {});
  for (const float value : {1.0f, 2.0f}) {
    REQUIRE(writer.Write(layout, SampleCut(layout, value, 5), SampleDescription()).ok());
  }
  const auto load = [&](const Manifest& manifest) {
    return reader.Verify(Generation(manifest.generation()), {});
  };
  for (const std::string& name : {ManifestName(Generation(2)), PackName(Generation(2), 0)}) {
    const std::string path = "/snapshots/" + name;
    const std::string content = files.Content(path);
    const auto check = [&](const std::string& damaged) {
      files.SetContent(path, damaged);
      const absl::Status verified = reader.Verify(Generation(2), {});
      REQUIRE(absl::IsDataLoss(verified));
      REQUIRE(absl::StrContains(verified.message(), name));
      const auto loaded = LoadNewest(reader, load);
      REQUIRE(loaded.ok());
      REQUIRE((*loaded)->generation() == 1);
    };
    for (size_t at = 0; at < content.size(); ++at) {
      CAPTURE(name, at);
      std::string damaged = content;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x04);
      check(damaged);
      check(content.substr(0, at));
    }
    files.SetContent(path, content);
    REQUIRE(reader.Verify(Generation(2), {}).ok());
  }
}

TEST_CASE("a snapshot says how many values are not finite, and the last without any is not collected",
          "[snapshot]") {
  const TempDir directory;
  const auto store = *LocalStore::Open(directory.path(), /*writer=*/true);
  const ParamLayout layout = *ParamLayout::Create(SampleModel());
  SnapshotWriter::Options options;
  options.keep.last = 2;
  SnapshotWriter writer(store.get(), options);
  REQUIRE(writer.Write(layout, SampleCut(layout, 1, 1), SampleDescription())->non_finite_values() == 0);
  for (int generation = 2; generation <= 6; ++generation) {
    std::vector<ShardCut> cuts = SampleCut(layout, static_cast<float>(generation), 2);
    bool cloned;
    cuts[0].pages[1][0].Writable(&cloned)[7] = std::numeric_limits<float>::infinity();  // Optimizer state.
    cuts[1].pages[0][0].Writable(&cloned)[0] = std::nanf("");
    cuts[1].pages[0][0].Writable(&cloned)[29] = -std::numeric_limits<float>::infinity();
    const auto manifest = writer.Write(layout, std::move(cuts), SampleDescription());
    REQUIRE(manifest.ok());
    CHECK(manifest->non_finite_values() == 3);
    REQUIRE(writer.CollectGarbage().ok());
  }
  const SnapshotReader reader(store.get());
  CHECK(*reader.List() == std::vector<Generation>{Generation(1), Generation(5), Generation(6)});
  CHECK(reader.Verify(Generation(1), {}).ok());
  const Manifest read = *reader.ReadManifest(Generation(6));
  CHECK(read.non_finite_values() == 3);
  CHECK(read.chunks(1).non_finite_values() == 1);
  CHECK(read.chunks(2).non_finite_values() == 2);
  // One that was written before anybody looked says neither.
  Manifest old = read;
  old.clear_non_finite_values();
  CHECK_FALSE(DecodeManifest(EncodeManifest(old))->has_non_finite_values());
  // Finite values again: the old one has done its duty.
  REQUIRE(writer.Write(layout, SampleCut(layout, 9, 3), SampleDescription()).ok());
  REQUIRE(writer.CollectGarbage().ok());
  CHECK(*reader.List() == std::vector<Generation>{Generation(6), Generation(7)});
}

}  // namespace recon
