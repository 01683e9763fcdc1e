#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/snapshot/carried_tensors.h"
#include "common/snapshot/reader_lease.h"
#include "common/snapshot/tensor_remap.h"
#include "common/storage/object_store.h"
#include "proto/manifest.pb.h"
#include "server/data_plane/param_server.h"

namespace recon {

// The parameters that a new job begins with (--from-snapshot): those of the newest snapshot of a directory.
// Which model they are for the first worker says; its tensors are found by their names.
//
// Threads: methods are called by one thread at a time; Load() works on one of its own.
// Shutdown: the destructor gives up what is being loaded; `done` may still run until it returns.
class InitialValues {
 public:
  // NotFound if there is no snapshot; DataLoss if none verifies. Values are not read yet. The snapshot is
  // kept from being removed from now on. `generation`: that one; 0: the newest.
  static absl::StatusOr<std::unique_ptr<InitialValues>> Open(const std::string& directory,
                                                             uint64_t generation = 0);
  ~InitialValues();

  uint64_t generation() const { return manifest_.generation(); }
  // What comes along and is not trained; null if there is nothing.
  std::shared_ptr<const CarriedTensors> carried() const { return carried_; }

  // OK if the snapshot has that model's tensors; else InvalidArgument, with all that is missing, left over,
  // or of another shape.
  absl::Status Check(const ModelSpec& model) const;
  // Fills the parameters of the model that `params` has, and then needs the snapshot no more. Blocks.
  absl::Status LoadInto(ParamServer* params);
  // The same on a thread of its own, on which `done` runs; once. Where none can be started, `done` is told so
  // before this returns. `params` must outlive this.
  void Load(ParamServer* params, std::function<void(const absl::Status&)> done);

 private:
  InitialValues(std::string directory, std::unique_ptr<ObjectStore> store)
      : directory_(std::move(directory)), store_(std::move(store)), reader_(store_.get()) {}

  // Set by Open().
  const std::string directory_;
  const std::unique_ptr<ObjectStore> store_;
  const SnapshotReader reader_;
  Manifest manifest_;
  std::shared_ptr<const CarriedTensors> carried_;
  std::unique_ptr<ReaderLease> lease_;

  std::atomic<bool> stopped_{false};
  std::thread loader_;
};

}  // namespace recon
