#include "worker/data/dataset.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "worker/data/cifar_dataset.h"
#include "worker/data/cluster_dataset.h"
#include "worker/data/idx_dataset.h"

namespace recon {
namespace {

constexpr uint64_t kFingerprintSamples = 256;

absl::StatusOr<TrainAndTest> OpenClusters(const std::string& text) {
  uint32_t numbers[4] = {0, 0, 32, 4};
  const std::vector<std::string> words = absl::StrSplit(text, ',');
  const bool count_ok = words.size() == 2 || words.size() == 4;
  for (size_t i = 0; i < words.size() && i < 4; ++i) {
    if (!count_ok || !absl::SimpleAtoi(words[i], &numbers[i]) || numbers[i] == 0 ||
        numbers[i] > 100'000'000) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--data clusters:", text, ": expected clusters:TRAIN,TEST[,FEATURES,CLASSES], none of them 0"));
    }
  }
  if (!count_ok) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data clusters:", text, ": expected two or four numbers"));
  }
  return MakeClusters(numbers[0], numbers[1], numbers[2], numbers[3]);
}

}  // namespace

uint64_t SplitMix64(uint64_t* state) {
  *state += 0x9E3779B97F4A7C15u;
  uint64_t z = *state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

std::vector<uint32_t> ShuffledOrder(uint64_t size, uint64_t seed, uint32_t data_epoch) {
  std::vector<uint32_t> order(size);
  std::iota(order.begin(), order.end(), 0u);
  uint64_t state = seed * 0x2545F4914F6CDD1Du + data_epoch;
  for (uint64_t i = size; i > 1; --i) std::swap(order[i - 1], order[SplitMix64(&state) % i]);
  return order;
}

std::string Fingerprint(const Dataset& dataset) {
  const uint64_t size = dataset.size();
  const uint64_t samples = std::min(kFingerprintSamples, size);
  std::vector<uint32_t> indices;
  for (uint64_t i = 0; i < samples; ++i) indices.push_back(static_cast<uint32_t>(i * size / samples));
  Batch batch;
  dataset.Read(indices, &batch);
  StreamingHash64 hash;
  hash.Update(&size, sizeof(size));
  hash.Update(batch.features.data(), batch.features.size() * sizeof(float));
  hash.Update(batch.labels.data(), batch.labels.size() * sizeof(uint32_t));
  return absl::StrCat(absl::Hex(hash.Digest(), absl::kZeroPad16));
}

absl::StatusOr<TrainAndTest> OpenDataset(const std::string& name) {
  const std::pair<std::string, std::string> halves = absl::StrSplit(name, absl::MaxSplits(':', 1));
  if (halves.first == "idx" && !halves.second.empty()) return OpenIdx(halves.second);
  if (halves.first == "cifar10" && !halves.second.empty()) return OpenCifar10(halves.second);
  if (halves.first == "clusters") return OpenClusters(halves.second);
  return absl::InvalidArgumentError(absl::StrCat(
      "--data ", name, ": expected idx:DIR, cifar10:DIR or clusters:TRAIN,TEST[,FEATURES,CLASSES]"));
}

}  // namespace recon
