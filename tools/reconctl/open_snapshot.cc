#include "tools/reconctl/open_snapshot.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/storage/file_system.h"
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
  RECON_ASSIGN_OR_RETURN(open.carried, ReadCarried(open.store.get(), open.tensors->manifest()));
  return open;
}

absl::StatusOr<std::unique_ptr<ObjectStore>> OpenEmpty(const std::string& directory) {
  // Looked at before a store is opened for writing, which clears away what it takes for its own leftovers.
  std::vector<std::string> names;
  RECON_ASSIGN_OR_RETURN(const StoreUrl where, ParseStoreUrl(directory));
  if (where.local()) {
    RECON_ASSIGN_OR_RETURN(names, FileSystem::Local()->List(where.path));
  } else {
    const auto store = OpenStore(directory, /*writer=*/false);
    if (!store.ok() && !absl::IsNotFound(store.status())) return store.status();
    if (store.ok()) {
      RECON_ASSIGN_OR_RETURN(names, (*store)->List(""));
    }
  }
  if (names.empty()) return OpenStore(directory, /*writer=*/true);
  return absl::FailedPreconditionError(absl::StrCat(directory, " is not empty (", names[0], ")"));
}

}  // namespace recon
