#include "worker/data/byte_images.h"

#include <sys/stat.h>
#include <zlib.h>

#include <cerrno>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/limits.h"
#include "common/base/regular_file.h"
#include "common/base/status_macros.h"

namespace recon {

absl::StatusOr<std::string> ReadFileOrGz(const std::string& path) {
  struct stat info;
  const std::string name = stat(path.c_str(), &info) == 0 || errno != ENOENT ? path : path + ".gz";
  if (stat(name.c_str(), &info) != 0 && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat("no data file ", path, " (nor with .gz)"));
  }
  RECON_RETURN_IF_ERROR(CheckRegularFile(name));
  // zlib reads plain files as they are.
  gzFile file = gzopen(name.c_str(), "rb");
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat(name, ": cannot be opened"));
  gzbuffer(file, 1 << 20);
  std::string bytes;
  std::vector<char> piece(1 << 20);
  int got = 0;
  while ((got = gzread(file, piece.data(), static_cast<unsigned>(piece.size()))) > 0) {
    bytes.append(piece.data(), static_cast<size_t>(got));
    if (bytes.size() > limits::kDatasetBytesMax) break;
  }
  int error = Z_OK;
  const std::string message = gzerror(file, &error);
  gzclose(file);
  if (got < 0 || (error != Z_OK && error != Z_STREAM_END)) {
    return absl::DataLossError(absl::StrCat(name, ": cannot be read to its end: ", message));
  }
  if (bytes.size() > limits::kDatasetBytesMax) {
    return absl::DataLossError(absl::StrCat(name, ": more than ", limits::kDatasetBytesMax, " bytes"));
  }
  return bytes;
}

ByteImages::ByteImages(std::vector<uint8_t> pixels, std::vector<uint8_t> labels, uint32_t features,
                       uint32_t classes)
    : pixels_(std::move(pixels)), labels_(std::move(labels)), features_(features), classes_(classes) {}

ByteImages::Scale ByteImages::MeasuredScale() const {
  uint64_t histogram[256] = {};
  for (const uint8_t pixel : pixels_) ++histogram[pixel];
  double sum = 0;
  double squares = 0;
  for (int value = 0; value < 256; ++value) {
    const double x = value / 255.0;
    sum += x * static_cast<double>(histogram[value]);
    squares += x * x * static_cast<double>(histogram[value]);
  }
  const auto count = static_cast<double>(pixels_.size());
  const double mean = sum / count;
  const double variance = squares / count - mean * mean;
  return {static_cast<float>(mean), variance > 0 ? static_cast<float>(std::sqrt(variance)) : 1.0f};
}

void ByteImages::Read(absl::Span<const uint32_t> indices, Batch* batch) const {
  float table[256];
  for (int value = 0; value < 256; ++value) {
    table[value] = (static_cast<float>(value) / 255.0f - scale_.mean) / scale_.deviation;
  }
  batch->samples = indices.size();
  batch->features.resize(indices.size() * features_);
  batch->labels.resize(indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    const uint8_t* from = pixels_.data() + uint64_t{indices[i]} * features_;
    float* to = batch->features.data() + i * features_;
    for (uint32_t j = 0; j < features_; ++j) to[j] = table[from[j]];
    batch->labels[i] = labels_[indices[i]];
  }
}

TrainAndTest WithTrainingScale(std::unique_ptr<ByteImages> train, std::unique_ptr<ByteImages> test) {
  const ByteImages::Scale scale = train->MeasuredScale();
  train->set_scale(scale);
  test->set_scale(scale);
  return {std::move(train), std::move(test)};
}

}  // namespace recon
