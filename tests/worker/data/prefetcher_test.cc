#include "worker/data/prefetcher.h"

#include <numeric>

#include "catch2/catch.hpp"
#include "worker/data/cluster_dataset.h"

namespace recon {

TEST_CASE("a prefetcher gives the batches of its samples in order, the last one shorter", "[data]") {
  const TrainAndTest data = MakeClusters(100, 1, 4, 3);
  std::vector<uint32_t> indices(50);
  std::iota(indices.begin(), indices.end(), 25u);
  Batch all;
  data.train->Read(indices, &all);
  Lane lane("reading");
  Prefetcher prefetcher(data.train.get(), indices, 16, &lane);
  std::vector<float> features;
  std::vector<size_t> sizes;
  for (Batch batch; prefetcher.Next(&batch);) {
    features.insert(features.end(), batch.features.begin(), batch.features.end());
    sizes.push_back(batch.samples);
  }
  CHECK(features == all.features);
  CHECK(sizes == std::vector<size_t>{16, 16, 16, 2});
}

TEST_CASE("a prefetcher that is dropped half-way waits for its reading", "[data]") {
  const TrainAndTest data = MakeClusters(100, 1, 4, 3);
  Lane lane("reading");
  for (int i = 0; i < 50; ++i) {
    Prefetcher prefetcher(data.train.get(), std::vector<uint32_t>(64, 1), 8, &lane);
    Batch batch;
    if (i % 2 == 0) CHECK(prefetcher.Next(&batch));
  }
}

}  // namespace recon
