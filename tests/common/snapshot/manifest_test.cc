#include "common/snapshot/manifest.h"

#include <cstring>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/base/hash.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "tests/server/durability/sample_state.h"
#include "tests/support/temp_dir.h"
#include "tools/source_paths.h"

namespace recon {
namespace {

Manifest SampleManifest() {
  const TempDir directory;
  auto store = LocalStore::Open(directory.path(), /*writer=*/true);
  const ParamLayout layout = *ParamLayout::Create(SampleModel());
  SnapshotWriter writer(store->get(), {});
  return *writer.Write(layout, SampleCut(layout, 1, 5), SampleDescription());
}

absl::Status Refused(const Manifest& manifest) { return DecodeManifest(EncodeManifest(manifest)).status(); }

}  // namespace

TEST_CASE("names carry their generation", "[manifest]") {
  CHECK(ManifestName(Generation(0x1f)) == "manifests/MANIFEST-000000000000001f");
  CHECK(PackName(Generation(2), 3) == "packs/PACK-0000000000000002-3");
  CHECK(*GenerationOfName("manifests/MANIFEST-000000000000001f") == Generation(0x1f));
  CHECK(*GenerationOfName("packs/PACK-0000000000000002-3") == Generation(2));
  CHECK(*GenerationOfName(PinName(Generation(5))) == Generation(5));
  for (const char* name :
       {"manifests/MANIFEST-1", "manifests/MANIFEST-000000000000001f.tmp", "packs/PACK-0000000000000002",
        "packs/PACK-0000000000000002-x", "LOCK", "packs/other"}) {
    CHECK_FALSE(GenerationOfName(name).ok());
  }
}

TEST_CASE("a manifest comes back as it was", "[manifest]") {
  const Manifest manifest = SampleManifest();
  const auto read = DecodeManifest(EncodeManifest(manifest));
  REQUIRE(read.ok());
  CHECK(read->SerializeAsString() == manifest.SerializeAsString());
}

TEST_CASE("every changed byte and every other length of a manifest is refused", "[manifest]") {
  const std::string bytes = EncodeManifest(SampleManifest());
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string altered = bytes;
    altered[at] = static_cast<char>(altered[at] ^ 0x20);
    INFO("byte " << at);
    CHECK(absl::IsDataLoss(DecodeManifest(altered).status()));
    CHECK(absl::IsDataLoss(DecodeManifest(bytes.substr(0, at)).status()));
  }
  CHECK(absl::IsDataLoss(DecodeManifest(bytes + "x").status()));
}

TEST_CASE("a manifest of a newer version is refused by both numbers", "[manifest]") {
  std::string bytes = EncodeManifest(SampleManifest());
  bytes[8] = 6;
  const uint64_t checksum = Hash64(bytes.data(), bytes.size() - sizeof(uint64_t));
  std::memcpy(&bytes[bytes.size() - sizeof(checksum)], &checksum, sizeof(checksum));
  CHECK(absl::IsFailedPrecondition(DecodeManifest(bytes).status()));
  CHECK(absl::StrContains(DecodeManifest(bytes).status().message(), "version 6, the one known is 5"));
}

TEST_CASE("a manifest that contradicts itself is refused, though its checksum is right", "[manifest]") {
  const Manifest good = SampleManifest();
  REQUIRE(Refused(good).ok());
  const auto broken = [&](auto change) {
    Manifest manifest = good;
    change(&manifest);
    return absl::IsDataLoss(Refused(manifest));
  };
  CHECK(broken([](Manifest* m) { m->clear_model(); }));
  CHECK(broken([](Manifest* m) { m->set_state_planes(2); }));
  CHECK(broken([](Manifest* m) { m->set_state_planes(4'000'000'000); }));
  CHECK(broken([](Manifest* m) { m->mutable_chunks()->RemoveLast(); }));
  CHECK(broken([](Manifest* m) { m->mutable_shards(1)->set_shard(0); }));
  CHECK(broken([](Manifest* m) { m->mutable_shards(1)->set_ledger(1); }));
  CHECK(broken([](Manifest* m) { m->clear_ledgers(); }));
  CHECK(broken([](Manifest* m) { m->mutable_chunks(1)->set_role(0); }));
  CHECK(broken([](Manifest* m) { m->mutable_chunks(0)->set_raw_bytes(4); }));
  CHECK(broken([](Manifest* m) { m->mutable_chunks(0)->set_pack(0, 9); }));
  CHECK(broken([](Manifest* m) { m->mutable_chunks(0)->set_offset(0, 1 << 30); }));
  CHECK(broken([](Manifest* m) { m->mutable_chunks(0)->set_stored_bytes(0, ~uint32_t{0}); }));
  CHECK(broken([](Manifest* m) { m->mutable_chunks(0)->clear_page_hash(); }));
  CHECK(broken([](Manifest* m) { m->mutable_chunks(0)->mutable_pack()->RemoveLast(); }));
  CHECK(broken([](Manifest* m) { m->mutable_chunks(0)->add_offset(0); }));
  CHECK(broken([](Manifest* m) { m->mutable_chunks(0)->clear_stored_bytes(); }));
  CHECK(broken([](Manifest* m) { m->mutable_packs(0)->set_name("../secret"); }));
  CHECK(broken([](Manifest* m) { m->mutable_packs(0)->set_name(PackName(Generation(2), 0)); }));
  CHECK(broken([](Manifest* m) { m->mutable_chunks(0)->set_page_hash(0, std::string(16, 'x')); }));
  CHECK(broken([](Manifest* m) { m->set_state_root(std::string(16, 'x')); }));
}

TEST_CASE("the state root is that of version 1: a fixed state, a fixed root", "[manifest]") {
  CHECK(ToHex(SampleManifest().state_root()) + "\n" ==
        ReadWholeFile(InSources("tests/golden/state_root_v1.hex")));
}

}  // namespace recon
