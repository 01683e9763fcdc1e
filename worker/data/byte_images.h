#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace recon {

// The bytes of PATH, or of PATH.gz decompressed if only that exists. NotFound, or DataLoss for a file
// that cannot be read to its end, a broken gzip stream, or more than limits::kDatasetBytesMax.
absl::StatusOr<std::string> ReadFileOrGz(const std::string& path);

// Images of bytes: features are scaled to (value / 255 - mean) / deviation, with the training set's
// mean and deviation over all pixels.
class ByteImages : public Dataset {
 public:
  struct Scale {
    float mean = 0;
    float deviation = 1;
  };

  // `pixels` is samples x features; each label is below `classes`.
  ByteImages(std::vector<uint8_t> pixels, std::vector<uint8_t> labels, uint32_t features, uint32_t classes);

  Scale MeasuredScale() const;
  void set_scale(const Scale& scale) { scale_ = scale; }

  uint64_t size() const override { return labels_.size(); }
  uint32_t features() const override { return features_; }
  uint32_t classes() const override { return classes_; }
  void Read(absl::Span<const uint32_t> indices, Batch* batch) const override;

 private:
  std::vector<uint8_t> pixels_;
  std::vector<uint8_t> labels_;
  uint32_t features_;
  uint32_t classes_;
  Scale scale_;
};

// Gives both sets the training set's scale.
TrainAndTest WithTrainingScale(std::unique_ptr<ByteImages> train, std::unique_ptr<ByteImages> test);

}  // namespace recon
