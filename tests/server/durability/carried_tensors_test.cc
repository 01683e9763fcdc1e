#include "common/snapshot/carried_tensors.h"

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/snapshot/manifest.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/server/durability/sample_state.h"
#include "tests/support/temp_dir.h"

namespace recon {
namespace {

SafetensorsEntry Entry(const std::string& name, const std::string& dtype, std::vector<uint64_t> shape) {
  SafetensorsEntry entry;
  entry.name = name;
  entry.dtype = dtype;
  entry.shape = std::move(shape);
  return entry;
}

std::shared_ptr<const CarriedTensors> SampleCarried() {
  auto made = CarriedTensors::Make({{Entry("steps", "I64", {}), std::string("\1\2\3\4\5\6\7\x80", 8)},
                                    {Entry("empty", "F16", {0, 3}), ""},
                                    {Entry("mask", "BOOL", {2, 1}), std::string("\1\0", 2)}},
                                   {{"head.weight", "weight"}});
  return std::make_shared<const CarriedTensors>(*std::move(made));
}

void CheckIsSample(const std::shared_ptr<const CarriedTensors>& carried) {
  REQUIRE(carried != nullptr);
  CHECK(carried->file() == SampleCarried()->file());
  REQUIRE(carried->tensors().size() == 3);
  for (const SafetensorsEntry& tensor : carried->tensors()) {
    const std::string expected = tensor.name == "steps"  ? std::string("\1\2\3\4\5\6\7\x80", 8)
                                 : tensor.name == "mask" ? std::string("\1\0", 2)
                                                         : "";
    INFO(tensor.name);
    CHECK(carried->BytesOf(tensor) == expected);
  }
  CHECK(carried->aliases() == TensorAliases{{"head.weight", "weight"}});
}

struct Fixture {
  TempDir directory;
  std::unique_ptr<LocalStore> store = *LocalStore::Open(directory.path(), /*writer=*/true);
  ParamLayout layout = *ParamLayout::Create(SampleModel());
};

std::string CarriedPack(const Manifest& manifest) {
  return manifest.packs(static_cast<int>(manifest.carried().pack())).name();
}

}  // namespace

TEST_CASE("what is carried is in every snapshot, written once while its pack is young", "[carried]") {
  Fixture f;
  SnapshotWriter::Options options;
  options.keep.last = 4;
  SnapshotWriter writer(f.store.get(), options);
  writer.SetCarried(SampleCarried());
  std::vector<std::string> packs;
  for (int generation = 1; generation <= 8; ++generation) {
    const auto cut = SampleCut(f.layout, static_cast<float>(generation), 5);
    const Manifest manifest = *writer.Write(f.layout, cut, SampleDescription());
    REQUIRE(writer.CollectGarbage().ok());
    packs.push_back(CarriedPack(manifest));
  }
  CHECK(packs[1] == packs[0]);
  CHECK(packs[2] == packs[0]);
  CHECK(packs[3] != packs[0]);  // Not all snapshots hang on one file.
  const SnapshotReader reader(f.store.get());
  const auto kept = reader.List();
  REQUIRE(kept->size() == 4);
  for (const Generation generation : *kept) {
    CheckIsSample(*ReadCarried(f.store.get(), *reader.ReadManifest(generation)));
    CHECK(reader.Verify(generation, {}).ok());
  }
  CHECK(*ReadCarried(f.store.get(), Manifest()) == nullptr);
}

TEST_CASE("of several servers' parts the head's has what is carried", "[carried]") {
  Fixture f;
  const Generation generation(1);
  std::vector<Manifest> parts;
  for (uint32_t server : {1u, 0u}) {
    SnapshotWriter writer(f.store.get(), {});
    writer.SetCarried(SampleCarried());
    std::vector<ShardCut> cut = SampleCut(f.layout, 1, 5);
    cut[1 - server] = ShardCut();
    parts.push_back(*writer.WritePart(f.layout, cut, generation, server, SnapshotWriter::Pace::kNow));
    CHECK(parts.back().has_carried() == (server == 0));
  }
  SnapshotWriter head(f.store.get(), {});
  const auto published =
      head.Publish(f.layout, SampleDescription(), generation, parts, {ServerPart(), ServerPart()});
  REQUIRE(published.ok());
  CheckIsSample(*ReadCarried(f.store.get(), *published));
}

TEST_CASE("what is carried is refused where it is not what the manifest says", "[carried]") {
  Fixture f;
  SnapshotWriter writer(f.store.get(), {});
  writer.SetCarried(SampleCarried());
  const Manifest good = *writer.Write(f.layout, SampleCut(f.layout, 1, 5), SampleDescription());
  const auto refused = [&](auto change) {
    Manifest manifest = good;
    change(manifest.mutable_carried());
    return absl::IsDataLoss(DecodeManifest(EncodeManifest(manifest)).status());
  };
  CHECK_FALSE(refused([](CarriedEntry*) {}));
  CHECK(refused([](CarriedEntry* c) { c->set_pack(99); }));
  CHECK(refused([](CarriedEntry* c) { c->set_offset(uint64_t{1} << 60); }));
  CHECK(refused([](CarriedEntry* c) { c->set_bytes(c->bytes() + 1); }));
  CHECK(refused([](CarriedEntry* c) { c->set_bytes(~uint64_t{0}); }));
  Manifest shorter = good;
  shorter.mutable_carried()->set_bytes(good.carried().bytes() - 1);
  CHECK(absl::StrContains(ReadCarried(f.store.get(), shorter).status().message(), "not trained have hash"));
  REQUIRE(f.store->Delete(CarriedPack(good)).ok());
  CHECK(absl::IsDataLoss(ReadCarried(f.store.get(), good).status()));
  CHECK(absl::IsDataLoss(SnapshotReader(f.store.get()).Verify(Generation(1), {})));
}

}  // namespace recon
