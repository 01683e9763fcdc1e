#include "worker/cuda/page_selection.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/worker/cuda/sequential_block.h"

namespace recon {
namespace {

using Selection = cuda::PageSelection<SequentialBlock>;

// A page's values, and a block that selects among them.
struct Page {
  explicit Page(std::vector<float> numbers)
      : values(std::move(numbers)),
        selection(block, *shared, static_cast<uint32_t>(values.size()), values.data()) {}

  // The marked indices, ascending, as the threads visit them in turn.
  std::vector<uint32_t> Marked() const {
    std::vector<uint32_t> marked;
    for (uint32_t thread = 0; thread < cuda::kBlockThreads; ++thread) {
      selection.EachMarked(thread, [&](uint32_t, uint32_t, uint32_t i) { marked.push_back(i); });
    }
    return marked;
  }

  std::vector<float> values;
  SequentialBlock block;
  std::unique_ptr<cuda::PageShared> shared = std::make_unique<cuda::PageShared>();
  Selection selection;
};

// Some values, with ties and zeros.
std::vector<float> Numbers(uint32_t count) {
  std::mt19937 random(count);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = std::clamp(normal(random), -1.5f, 0.9f);
  for (uint32_t i = 0; i < count; i += 3) values[i] = 0;
  return values;
}

// The indices of the k largest magnitudes that are not 0, ascending; of equal ones the lower counts.
std::vector<uint32_t> LargestOf(const std::vector<float>& values, uint32_t k) {
  std::vector<uint32_t> indices(values.size());
  std::iota(indices.begin(), indices.end(), 0);
  std::stable_sort(indices.begin(), indices.end(),
                   [&values](uint32_t a, uint32_t b) { return std::fabs(values[a]) > std::fabs(values[b]); });
  indices.resize(std::min<size_t>(k, indices.size()));
  indices.erase(
      std::remove_if(indices.begin(), indices.end(), [&values](uint32_t i) { return values[i] == 0; }),
      indices.end());
  std::sort(indices.begin(), indices.end());
  return indices;
}

}  // namespace

TEST_CASE("the k largest values of a page stay marked, the lower index of equal ones", "[cuda]") {
  const uint32_t count = GENERATE(1u, 31u, 33u, 5'000u, 65'535u, 65'536u);
  const uint32_t k = std::max(1u, count / GENERATE(1u, 4u, 100u));
  // Where marking begins: at once right, too low, or too high to find as many.
  const float first = GENERATE(0.0f, 0.5f, 100.0f);
  CAPTURE(count, k, first);
  Page page(Numbers(count));
  page.shared->magnitude_min = std::max(1u, MagnitudeBits(first));
  page.selection.MarkFrom(page.shared->magnitude_min);
  const auto others = static_cast<uint32_t>(
      std::count_if(page.values.begin(), page.values.end(), [](float value) { return value != 0; }));
  const bool cut = page.selection.PickLargest(k);
  if (first == 0) CHECK(cut == (others > k));
  CHECK(page.Marked() == LargestOf(page.values, k));
}

TEST_CASE("the magnitude of a rank is found, and how many of its equals belong to it", "[cuda]") {
  Page page(Numbers(10'000));
  std::vector<float> magnitudes = page.values;
  for (float& value : magnitudes) value = std::fabs(value);
  std::sort(magnitudes.begin(), magnitudes.end(), std::greater<>());
  for (const uint32_t rank : {1u, 2u, 700u, 5'000u, 10'000u}) {
    CAPTURE(rank);
    page.selection.RadixSelect(rank, [&page](uint32_t thread, const auto& add) {
      page.selection.EachValue(thread, page.values.data(), [&](uint32_t i, float value) {
        if (i < page.values.size()) add(MagnitudeBits(value));
      });
    });
    const float found = magnitudes[rank - 1];
    CHECK(page.shared->prefix == MagnitudeBits(found));
    const auto larger = std::count_if(magnitudes.begin(), magnitudes.end(),
                                      [found](float magnitude) { return magnitude > found; });
    CHECK(page.shared->need == rank - larger);
  }
}

TEST_CASE("scans give each thread what those up to it have, their sum or the largest", "[cuda]") {
  Page page({1.0f});
  std::vector<uint32_t> sums(cuda::kBlockThreads), largest(cuda::kBlockThreads);
  std::vector<uint32_t> given(cuda::kBlockThreads);
  std::mt19937 random(7);
  for (uint32_t& number : given) number = random() % 1000;
  std::partial_sum(given.begin(), given.end(), sums.begin());
  std::partial_sum(given.begin(), given.end(), largest.begin(),
                   [](uint32_t a, uint32_t b) { return std::max(a, b); });
  std::copy(given.begin(), given.end(), page.shared->scan[0]);
  const uint32_t* found = page.selection.Scan();
  CHECK(std::equal(sums.begin(), sums.end(), found));
  CHECK(Selection::Before(found, 0) == 0);
  CHECK(Selection::Before(found, 5) == sums[4]);
  std::copy(given.begin(), given.end(), page.shared->scan[0]);
  CHECK(std::equal(largest.begin(), largest.end(), page.selection.ScanLargest()));
}

}  // namespace recon
