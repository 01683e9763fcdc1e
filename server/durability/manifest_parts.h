#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/snapshot/manifest.h"
#include "common/tensor/param_layout.h"

namespace recon {

// A manifest's ledgers, each once. Not thread-safe.
class LedgerTable {
 public:
  // `manifest` has none yet, and must outlive it.
  explicit LedgerTable(Manifest* manifest) : manifest_(manifest) {}

  // The index of this one.
  uint32_t Add(const Ledger& ledger);

 private:
  Manifest* const manifest_;
  std::map<std::string, uint32_t> numbers_;
};

// One manifest of the packs, ledgers, shards and chunks of all parts, in the order of shards and roles.
// Internal unless the parts, which are of several servers, have every shard of the model once, and all that
// they refer to.
absl::StatusOr<Manifest> JoinParts(const ParamLayout& layout, std::vector<Manifest> parts);

}  // namespace recon
