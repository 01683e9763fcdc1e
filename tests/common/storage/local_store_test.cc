#include "common/storage/local_store.h"

#include <sys/stat.h>

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

TEST_CASE("a pipe in place of an object is listed and named, and nobody waits for its other end",
          "[local_store]") {
  const TempDir directory;
  auto store = *LocalStore::Open(directory.path(), /*writer=*/true);
  REQUIRE(store->PutIfAbsent("packs/PACK-0", "whole").ok());
  REQUIRE(mkfifo((directory / "packs/PACK-1").c_str(), 0600) == 0);
  CHECK(*store->List("packs/") == std::vector<std::string>{"packs/PACK-0", "packs/PACK-1"});
  const std::string said = (directory / "packs/PACK-1") + " is a pipe, no regular file";
  // Large reads go past the page cache.
  std::string out(size_t{1} << 20, '\0');
  for (const uint64_t size : {uint64_t{1}, uint64_t{1} << 20}) {
    const absl::Status read = store->ReadInto("packs/PACK-1", 0, size, out.data());
    CHECK(absl::IsFailedPrecondition(read));
    CHECK(read.message() == said);
  }
  CHECK(store->Size("packs/PACK-1").status() == absl::FailedPreconditionError(said));
  CHECK(absl::IsAlreadyExists(store->PutIfAbsent("packs/PACK-1", "")));
  REQUIRE(mkfifo((directory / "packs/PACK-2.tmp").c_str(), 0600) == 0);
  CHECK(absl::IsFailedPrecondition(store->Create("packs/PACK-2").status()));
  CHECK(store->Delete("packs/PACK-1").ok());
  CHECK(*store->List("packs/") == std::vector<std::string>{"packs/PACK-0"});
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
