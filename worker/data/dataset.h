#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace recon {

// Samples as the models take them.
struct Batch {
  size_t samples = 0;
  std::vector<float> features;   // samples x features, row-major.
  std::vector<uint32_t> labels;  // samples.
};

// A labelled set of samples in memory. Immutable and thread-safe after loading.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual uint64_t size() const = 0;
  virtual uint32_t features() const = 0;
  virtual uint32_t classes() const = 0;
  // Fills `batch` with the samples at `indices`, each below size(), in that order.
  virtual void Read(absl::Span<const uint32_t> indices, Batch* batch) const = 0;
};

struct TrainAndTest {
  std::unique_ptr<Dataset> train;
  std::unique_ptr<Dataset> test;
};

// Opens what --data names:
//   idx:DIR                      IDX files of the MNIST family, gz or not (the default is the path of
//                                Debian's package dataset-fashion-mnist)
//   cifar10:DIR                  CIFAR-10 binary version
//   clusters:TRAIN,TEST[,FEATURES,CLASSES]   generated Gaussian clusters
// InvalidArgument for a malformed name; NotFound or DataLoss with the file's name for absent, truncated or
// corrupt files.
absl::StatusOr<TrainAndTest> OpenDataset(const std::string& name);
inline constexpr char kDefaultDataset[] = "idx:/usr/share/datasets/fashion-mnist";

// Order of the samples in one pass: a permutation of 0..size-1 that depends on the arguments alone
// (Fisher-Yates over SplitMix64), so that a split means the same samples on every worker.
std::vector<uint32_t> ShuffledOrder(uint64_t size, uint64_t seed, uint32_t data_epoch);

// Tells data sets apart: 16 hexadecimal digits, by some of the samples. Stable: jobs keep it.
std::string Fingerprint(const Dataset& dataset);

// One step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): advances `state`, returns 64 random bits.
uint64_t SplitMix64(uint64_t* state);

}  // namespace recon
