#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "proto/manifest.pb.h"

namespace recon {

// Framing and names of manifests; the grammar is in FORMAT.md. Pure functions.

std::string ManifestName(Generation generation);
std::string PackName(Generation generation, uint32_t pack);
// An empty object of this name keeps a generation from being removed.
std::string PinName(Generation generation);
// The collector's mark: this generation is being removed.
std::string RetiredName(Generation generation);
// A reader's lease of a generation; `id` is random.
inline constexpr char kLeasePrefix[] = "leases/LEASE-";
std::string LeaseName(Generation generation, uint64_t id);
// The generation in one of these names; InvalidArgument if it is none of them.
absl::StatusOr<Generation> GenerationOfName(absl::string_view name);

std::string EncodeManifest(const Manifest& manifest);

// FailedPrecondition for another version; DataLoss, saying what differs, unless magic, length and checksum
// are right, and the content is consistent: every shard of the model has a listed ledger and one chunk for
// each role, with a hash and a place within a listed pack, of this generation or an earlier one, for each
// page, and the state root is the hash of those.
absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes);

// Which pushes a shard had applied; of a manifest that DecodeManifest() gave.
const Ledger& LedgerOf(const Manifest& manifest, uint32_t shard);

// Servers that took it.
uint32_t ServersOf(const Manifest& manifest);
// The manifest as server `server` of them sees it: `sequence` and `log_from` are of that server's log.
Manifest ForServer(Manifest manifest, uint32_t server);

struct SnapshotSizes {
  uint64_t raw = 0;     // Of all pages,
  uint64_t stored = 0;  // encoded.
  uint64_t own = 0;     // Encoded, of those that this generation brought.
};
SnapshotSizes SizesOf(const Manifest& manifest);

// The state root of a manifest's page hashes, 16 bytes. Chunks must be in order of shard, then role.
std::string ComputeStateRoot(const Manifest& manifest);

}  // namespace recon
