#pragma once

#include <memory>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/storage/object_store.h"

namespace recon {

// What every ObjectStore must do; an implementation's test calls it with an empty store.
inline void CheckStoreConformance(ObjectStore* store) {
  CHECK(store->List("")->empty());
  CHECK(absl::IsNotFound(store->Size("a/one").status()));

  auto writer = store->Create("a/one");
  REQUIRE(writer.ok());
  REQUIRE((*writer)->Append("hello ").ok());
  REQUIRE((*writer)->Append("world").ok());
  CHECK(store->List("")->empty());  // Not before Close().
  REQUIRE((*writer)->Close().ok());
  CHECK(*store->Size("a/one") == 11);
  CHECK(*store->Read("a/one", 0, 11) == "hello world");
  CHECK(*store->Read("a/one", 6, 5) == "world");
  CHECK(*store->Read("a/one", 11, 0) == "");
  CHECK(absl::IsDataLoss(store->Read("a/one", 6, 6).status()));
  CHECK(absl::IsDataLoss(store->Read("a/one", ~uint64_t{0}, 2).status()));
  CHECK(absl::IsNotFound(store->Read("a/two", 0, 0).status()));

  {
    auto abandoned = store->Create("a/abandoned");
    REQUIRE(abandoned.ok());
    REQUIRE((*abandoned)->Append("x").ok());
  }
  CHECK(absl::IsNotFound(store->Size("a/abandoned").status()));

  REQUIRE(store->PutIfAbsent("b/two", "first").ok());
  CHECK(absl::IsAlreadyExists(store->PutIfAbsent("b/two", "second")));
  CHECK(*store->Read("b/two", 0, 5) == "first");
  REQUIRE(store->PutIfAbsent("b/empty", "").ok());
  CHECK(*store->Size("b/empty") == 0);

  CHECK(*store->List("") == std::vector<std::string>{"a/one", "b/empty", "b/two"});
  CHECK(*store->List("b/") == std::vector<std::string>{"b/empty", "b/two"});
  CHECK(store->Delete("b/two").ok());
  CHECK(store->Delete("b/two").ok());
  CHECK(absl::IsNotFound(store->Size("b/two").status()));
  CHECK_FALSE(store->Describe().empty());
}

}  // namespace recon
