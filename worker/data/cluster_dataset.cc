#include "worker/data/cluster_dataset.h"

#include <memory>

namespace recon {
namespace {

// About normal: the sum of four uniforms, scaled to variance 1. No library function, so that every
// machine gives the same bits.
float NearlyNormal(uint64_t* state) {
  const uint64_t bits = SplitMix64(state);
  int32_t sum = 0;
  for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>(bits >> (16 * i) & 0xFFFF);
  return static_cast<float>(sum - 2 * 65535) * (1.0f / 37837.0f);
}

class Clusters : public Dataset {
 public:
  Clusters(uint64_t first, uint64_t size, uint32_t features, uint32_t classes)
      : first_(first),
        size_(size),
        features_(features),
        classes_(classes),
        centres_(size_t{features} * classes) {
    uint64_t state = 0x5EED;
    for (float& value : centres_) value = NearlyNormal(&state);
  }

  uint64_t size() const override { return size_; }
  uint32_t features() const override { return features_; }
  uint32_t classes() const override { return classes_; }

  void Read(absl::Span<const uint32_t> indices, Batch* batch) const override {
    batch->samples = indices.size();
    batch->features.resize(indices.size() * features_);
    batch->labels.resize(indices.size());
    for (size_t i = 0; i < indices.size(); ++i) {
      uint64_t state = (first_ + indices[i]) * 0x9E3779B97F4A7C15u + 1;
      const auto label = static_cast<uint32_t>(SplitMix64(&state) % classes_);
      batch->labels[i] = label;
      for (uint32_t j = 0; j < features_; ++j) {
        batch->features[i * features_ + j] = centres_[size_t{label} * features_ + j] + NearlyNormal(&state);
      }
    }
  }

 private:
  uint64_t first_;
  uint64_t size_;
  uint32_t features_;
  uint32_t classes_;
  std::vector<float> centres_;
};

}  // namespace

TrainAndTest MakeClusters(uint32_t train, uint32_t test, uint32_t features, uint32_t classes) {
  return {std::make_unique<Clusters>(0, train, features, classes),
          std::make_unique<Clusters>(train, test, features, classes)};
}

}  // namespace recon
