#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/snapshot/carried_tensors.h"
#include "common/snapshot/reader_lease.h"
#include "common/snapshot/tensor_reader.h"
#include "common/storage/object_store.h"

namespace recon {

// A snapshot that is read, and kept from being removed meanwhile.
struct OpenSnapshot {
  std::unique_ptr<ObjectStore> store;
  std::unique_ptr<ReaderLease> lease;
  std::unique_ptr<TensorReader> tensors;
  std::shared_ptr<const CarriedTensors> carried;  // Null if it has none.
};

// That generation or, if `number` is 0, the newest.
absl::StatusOr<OpenSnapshot> OpenGeneration(const std::string& directory, uint64_t number);

// A directory for a first snapshot. FailedPrecondition if it is not empty.
absl::StatusOr<std::unique_ptr<ObjectStore>> OpenEmpty(const std::string& directory);

}  // namespace recon
