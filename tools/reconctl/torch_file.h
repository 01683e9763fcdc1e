#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace recon {

struct TorchTensor {
  std::string name;
  std::string dtype;  // As safetensors names them.
  std::vector<uint64_t> shape;
  uint64_t bytes = 0;
  // Appends the values' bytes, row by row, to an empty text; called once.
  std::function<absl::Status(std::string* bytes)> read;
};

// A file for torch.load(): a state dict (an OrderedDict of tensors, in this order) in the zip format
// that torch.save has written since PyTorch 1.6, which weights_only=True loads, too. One tensor is in memory
// at a time. The file is there whole, and on the disk, or not at all. InvalidArgument for types that such
// files have not had from the beginning.
absl::Status WriteTorchFile(const std::string& path, const std::vector<TorchTensor>& tensors);

}  // namespace recon
