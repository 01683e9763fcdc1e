#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/data/byte_images.h"

namespace recon {

// IDX files (http://yann.lecun.com/exdb/mnist): train-images-idx3-ubyte and the three others, gz or not.
absl::StatusOr<TrainAndTest> OpenIdx(const std::string& directory);

// Decodes an image file and a label file. `name` stands in front of errors. DataLoss unless magic, counts
// and lengths agree and every label is below 256 classes.
absl::StatusOr<std::unique_ptr<ByteImages>> DecodeIdx(const std::string& name, absl::string_view images,
                                                      absl::string_view labels);

}  // namespace recon
