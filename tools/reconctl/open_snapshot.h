#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/snapshot/reader_lease.h"
#include "common/snapshot/tensor_reader.h"
#include "common/storage/object_store.h"

namespace recon {

// The metadata member of an exported file that has the model as it was: a file's tensors have no groups and
// another order.
inline constexpr char kModelMetadata[] = "recon.model";

// A snapshot that is read, and kept from being removed meanwhile.
struct OpenSnapshot {
  std::unique_ptr<ObjectStore> store;
  std::unique_ptr<ReaderLease> lease;
  std::unique_ptr<TensorReader> tensors;
};

// That generation or, if `number` is 0, the newest.
absl::StatusOr<OpenSnapshot> OpenGeneration(const std::string& directory, uint64_t number);

}  // namespace recon
