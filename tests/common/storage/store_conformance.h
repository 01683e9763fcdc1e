#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "catch2/catch.hpp"
#include "common/storage/object_store.h"

namespace recon {

inline std::string RandomBytes(size_t size) {
  std::string bytes(size, '\0');
  std::mt19937_64 random(size);
  for (size_t i = 0; i + 8 <= size; i += 8) {
    const uint64_t word = random();
    std::memcpy(&bytes[i], &word, 8);
  }
  return bytes;
}

// What every ObjectStore must do; an implementation's test calls it with an empty store.
// `atomic`: of several PutIfAbsent() at the same time one wins. Not so with Swift, which looks first and then
// writes.
inline void CheckStoreConformance(ObjectStore* store, bool atomic = true) {
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
  const auto age = store->Age("a/one");
  REQUIRE(age.ok());
  CHECK(*age > -absl::Seconds(2));
  CHECK(*age < absl::Minutes(4));  // Of a busy machine.
  CHECK(absl::IsNotFound(store->Age("a/two").status()));
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

  // Larger than any part that a store may cut it into, written and read in pieces of other sizes.
  const std::string large = RandomBytes(20'000'001);
  writer = store->Create("c/large");
  REQUIRE(writer.ok());
  for (size_t at = 0; at < large.size();) {
    const size_t size = std::min<size_t>(large.size() - at, at % 7 == 0 ? 3'000'001 : 70'000);
    REQUIRE((*writer)->Append(absl::string_view(large).substr(at, size)).ok());
    at += size;
  }
  REQUIRE((*writer)->Close().ok());
  CHECK(*store->Size("c/large") == large.size());
  CHECK(*store->Read("c/large", 0, large.size()) == large);
  CHECK(*store->Read("c/large", 8'388'000, 1000) == large.substr(8'388'000, 1000));
  CHECK(*store->Read("c/large", large.size() - 1, 1) == large.substr(large.size() - 1));
  {
    auto abandoned = store->Create("c/abandoned");
    REQUIRE(abandoned.ok());
    REQUIRE((*abandoned)->Append(large).ok());
  }
  CHECK(absl::IsNotFound(store->Size("c/abandoned").status()));
  // One written again is the later one, whole.
  writer = store->Create("c/large");
  REQUIRE(writer.ok());
  REQUIRE((*writer)->Append("small").ok());
  REQUIRE((*writer)->Close().ok());
  CHECK(*store->Size("c/large") == 5);
  CHECK(store->Delete("c/large").ok());

  // Of those who come at once, one is first.
  std::atomic<int> first{0}, late{0}, others{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const absl::Status put = store->PutIfAbsent("d/raced", std::to_string(i));
      ++(put.ok() ? first : absl::IsAlreadyExists(put) ? late : others);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(first >= 1);
  CHECK(first + late == 4);
  if (atomic) CHECK(first == 1);
  CHECK(others == 0);
  CHECK(*store->Size("d/raced") == 1);
  CHECK(*store->List("") == std::vector<std::string>{"a/one", "b/empty", "d/raced"});
}

}  // namespace recon
