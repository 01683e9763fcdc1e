#include "tools/reconctl/open_snapshot.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/storage/store_url.h"
#include "tools/reconctl/verbs.h"

namespace recon {

absl::StatusOr<OpenSnapshot> OpenGeneration(const std::string& directory, uint64_t number) {
  OpenSnapshot open;
  RECON_ASSIGN_OR_RETURN(open.store, OpenStore(directory, /*writer=*/false));
  RECON_ASSIGN_OR_RETURN(const Generation generation,
                         OrNewest(number, SnapshotReader(open.store.get()), directory));
  RECON_ASSIGN_OR_RETURN(open.lease, ReaderLease::TakeIfWritable(open.store.get(), generation));
  RECON_ASSIGN_OR_RETURN(TensorReader tensors, TensorReader::Open(open.store.get(), generation));
  open.tensors = std::make_unique<TensorReader>(std::move(tensors));
  return open;
}

}  // namespace recon
