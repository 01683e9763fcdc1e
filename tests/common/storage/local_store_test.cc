#include "common/storage/local_store.h"

#include <filesystem>

#include "tests/common/storage/store_conformance.h"
#include "tests/support/temp_dir.h"

namespace recon {

TEST_CASE("a local directory is an object store", "[local_store]") {
  const TempDir directory;
  auto store = LocalStore::Open(directory / "new/store", /*writer=*/true);
  REQUIRE(store.ok());
  CheckStoreConformance(store->get());
}

TEST_CASE("a reader of a directory that is not there is told so, and makes none", "[local_store]") {
  const TempDir directory;
  const auto store = LocalStore::Open(directory / "absent", /*writer=*/false);
  CHECK(absl::IsNotFound(store.status()));
  CHECK(absl::StrContains(store.status().message(), "absent"));
  CHECK_FALSE(std::filesystem::exists(directory / "absent"));
}

TEST_CASE("what a crash left is removed by the next writer, not by a reader", "[local_store]") {
  const TempDir directory;
  WriteWholeFile(directory / "packs/PACK-1.tmp", "half");
  WriteWholeFile(directory / "packs/PACK-0", "whole");
  auto reader = LocalStore::Open(directory.path(), /*writer=*/false);
  REQUIRE(reader.ok());
  CHECK(*(*reader)->List("") == std::vector<std::string>{"packs/PACK-0"});
  CHECK(std::filesystem::exists(directory / "packs/PACK-1.tmp"));
  REQUIRE(LocalStore::Open(directory.path(), /*writer=*/true).ok());
  CHECK_FALSE(std::filesystem::exists(directory / "packs/PACK-1.tmp"));
  CHECK(std::filesystem::exists(directory / "packs/PACK-0"));
}

}  // namespace recon
