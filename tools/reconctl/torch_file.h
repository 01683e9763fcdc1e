#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace recon {

struct TorchTensor {
  std::string name;
  std::vector<uint64_t> shape;
  // Appends the values, row by row, to an empty vector; called once.
  std::function<absl::Status(std::vector<float>* values)> read;
};

// A file for torch.load(): a state dict (an OrderedDict of FP32 tensors, in this order) in the zip format
// that torch.save has written since PyTorch 1.6, which weights_only=True loads, too. One tensor is in memory
// at a time. The file is there whole, and on the disk, or not at all.
absl::Status WriteTorchFile(const std::string& path, const std::vector<TorchTensor>& tensors);

}  // namespace recon
