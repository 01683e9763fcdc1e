#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/byte_images.h"

namespace recon {

// CIFAR-10, binary version (https://www.cs.toronto.edu/~kriz/cifar.html): data_batch_1.bin to
// data_batch_5.bin and test_batch.bin, gz or not, in `directory` or its cifar-10-batches-bin.
absl::StatusOr<TrainAndTest> OpenCifar10(const std::string& directory);

// Decodes records of one label and 3072 pixels. DataLoss, with `name`, if the length is no multiple of a
// record, there is none, or a label is above 9.
absl::StatusOr<std::unique_ptr<ByteImages>> DecodeCifar10(const std::string& name,
                                                          const std::vector<std::string>& files);

}  // namespace recon
