#include "common/tensor/page.h"

#include <atomic>
#include <thread>

#include "catch2/catch.hpp"

namespace recon {

TEST_CASE("a page nobody else holds is written in place", "[page]") {
  PageRef page = PageRef::Zeroed();
  bool cloned = true;
  float* values = page.Writable(&cloned);
  CHECK_FALSE(cloned);
  CHECK(values == page.data());
  CHECK(reinterpret_cast<uintptr_t>(values) % 64 == 0);
  CHECK(values[0] == 0);
  CHECK(values[kPageParams - 1] == 0);
}

TEST_CASE("a page somebody holds is cloned, and the holder sees the old values", "[page]") {
  PageRef page = PageRef::Zeroed();
  bool cloned = false;
  page.Writable(&cloned)[5] = 1;
  const PageRef held = page;
  CHECK(held.SharesWith(page));
  page.Writable(&cloned)[5] = 2;
  CHECK(cloned);
  CHECK(held.data()[5] == 1);
  CHECK(page.data()[5] == 2);
  page.Writable(&cloned)[5] = 3;
  CHECK_FALSE(cloned);
}

TEST_CASE("freed pages are used again", "[page]") {
  { const PageRef page = PageRef::Zeroed(); }
  const size_t before = PageMemoryBytes();
  for (int i = 0; i < 100; ++i) const PageRef page = PageRef::Zeroed();
  CHECK(PageMemoryBytes() == before);
}

TEST_CASE("with a limit, who needs a page waits until one is given back", "[page]") {
  const uint64_t waits = GetPageUse().waits;
  LimitPages(GetPageUse().pages + 2);
  PageRef first = PageRef::New();
  const PageRef second = PageRef::New();
  std::atomic<bool> got{false};
  std::thread third([&] {
    const PageRef page = PageRef::New();
    got = true;
  });
  while (GetPageUse().waits == waits) std::this_thread::yield();
  CHECK_FALSE(got);
  first = PageRef();
  third.join();
  CHECK(got);
  LimitPages(UINT64_MAX);
}

}  // namespace recon
