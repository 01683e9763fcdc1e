#include <algorithm>
#include <cstdint>
#include <string>

#include "worker/data/cifar_dataset.h"
#include "worker/data/idx_dataset.h"

// Any bytes as an image file and a label file, cut in two by the first byte; and as CIFAR-10 records.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t cut = std::min<size_t>(data[0], bytes.size());
  const auto images = recon::DecodeIdx("fuzz", bytes.substr(0, cut), bytes.substr(cut));
  if (images.ok()) {
    recon::Batch batch;
    (*images)->Read({0}, &batch);
  }
  recon::DecodeCifar10("fuzz", {std::string(bytes)}).status().IgnoreError();
  return 0;
}
