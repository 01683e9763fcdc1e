#include <unistd.h>

#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/local_store.h"
#include "nlohmann/json.hpp"
#include "tools/reconctl/render.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

struct Sizes {
  uint64_t raw = 0;
  uint64_t stored = 0;
};

Sizes SizesOf(const Manifest& manifest) {
  Sizes sizes;
  for (const ChunkEntry& chunk : manifest.chunks()) sizes.raw += chunk.raw_bytes();
  for (const PackEntry& pack : manifest.packs()) sizes.stored += pack.bytes();
  return sizes;
}

Json Summary(const Manifest& manifest) {
  const Sizes sizes = SizesOf(manifest);
  return {{"generation", manifest.generation()},
          {"created_unix_ms", manifest.created_unix_ms()},
          {"reason", manifest.reason()},
          {"model", manifest.model().name()},
          {"sequence", manifest.sequence()},
          {"frontier_step", manifest.frontier_step()},
          {"cluster_epoch", manifest.cluster_epoch()},
          {"optimizer", manifest.optimizer()},
          {"raw_bytes", sizes.raw},
          {"stored_bytes", sizes.stored},
          {"state_root", ToHex(manifest.state_root())}};
}

absl::StatusOr<Generation> Newest(const SnapshotReader& reader, const std::string& directory) {
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  if (generations.empty()) return absl::NotFoundError(absl::StrCat(directory, " holds no snapshot"));
  return generations.back();
}

}  // namespace

absl::Status ListSnapshots(const SnapshotTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto store, LocalStore::Open(target.directory, /*writer=*/false));
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  Json list = Json::array();
  std::vector<std::vector<std::string>> rows = {
      {"GENERATION", "CREATED", "REASON", "MODEL", "STEP", "STORED", "RAW", "STATE ROOT"}};
  absl::Status damage;
  for (const Generation generation : generations) {
    const absl::StatusOr<Manifest> manifest = reader.ReadManifest(generation);
    if (!manifest.ok()) {
      damage.Update(manifest.status());
      list.push_back(
          {{"generation", generation.value()}, {"error", std::string(manifest.status().message())}});
      rows.push_back(
          {absl::StrCat(generation.value()), "-", "DAMAGED", std::string(manifest.status().message())});
      continue;
    }
    const Sizes sizes = SizesOf(*manifest);
    list.push_back(Summary(*manifest));
    rows.push_back({absl::StrCat(generation.value()), HumanTime(manifest->created_unix_ms()),
                    manifest->reason(), manifest->model().name(), absl::StrCat(manifest->frontier_step()),
                    HumanBytes(sizes.stored), HumanBytes(sizes.raw), ToHex(manifest->state_root())});
  }
  std::cout << (target.json ? list.dump() + "\n" : Table(rows));
  return damage;
}

absl::Status ShowSnapshot(const SnapshotTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto store, LocalStore::Open(target.directory, /*writer=*/false));
  const SnapshotReader reader(store.get());
  Generation generation(target.generation);
  if (target.generation == 0) {
    RECON_ASSIGN_OR_RETURN(generation, Newest(reader, target.directory));
  }
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, reader.ReadManifest(generation));
  Json json = Summary(manifest);
  json["tensors"] = Json::array();
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "SHAPE", "GROUP"}};
  for (const TensorSpec& tensor : manifest.model().tensors()) {
    json["tensors"].push_back(
        {{"name", tensor.name()}, {"shape", tensor.shape()}, {"group", tensor.group()}});
    rows.push_back({tensor.name(), absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]"),
                    tensor.group().empty() ? "default" : tensor.group()});
  }
  json["shards"] = Json::array();
  std::vector<std::vector<std::string>> shard_rows = {{"SHARD", "VERSION", "WORKERS IN LEDGER"}};
  for (const ShardEntry& shard : manifest.shards()) {
    json["shards"].push_back(
        {{"shard", shard.shard()}, {"version", shard.version()}, {"ledger", shard.ledger_size()}});
    shard_rows.push_back(
        {absl::StrCat(shard.shard()), absl::StrCat(shard.version()), absl::StrCat(shard.ledger_size())});
  }
  if (target.json) {
    std::cout << json.dump() << "\n";
    return absl::OkStatus();
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_array())
      std::cout << absl::StrFormat("%-16s ", key)
                << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
  }
  std::cout << "\n" << Table(rows) << "\n" << Table(shard_rows);
  return absl::OkStatus();
}

absl::Status VerifySnapshots(const SnapshotTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto store, LocalStore::Open(target.directory, /*writer=*/false));
  const SnapshotReader reader(store.get());
  std::vector<Generation> generations = {Generation(target.generation)};
  if (target.generation == 0) {
    RECON_ASSIGN_OR_RETURN(generations, reader.List());
    if (generations.empty()) return absl::NotFoundError(absl::StrCat(target.directory, " holds no snapshot"));
  }
  const bool terminal = isatty(STDERR_FILENO) != 0;
  Json list = Json::array();
  absl::Status damage;
  for (const Generation generation : generations) {
    const absl::Status status = reader.Verify(generation, [&](int done, int chunks) {
      if (!terminal) return;
      std::cerr << "\r" << Bar(static_cast<double>(done) / chunks, 30) << " snapshot " << generation.value()
                << ", chunk " << done << " of " << chunks << std::flush;
    });
    if (terminal) std::cerr << "\r\033[K";
    damage.Update(status);
    list.push_back(
        {{"generation", generation.value()}, {"ok", status.ok()}, {"error", std::string(status.message())}});
    if (!target.json) {
      std::cout << "snapshot " << generation.value() << ": "
                << (status.ok() ? "ok" : std::string(status.message())) << "\n";
    }
  }
  if (target.json) std::cout << list.dump() << "\n";
  return damage;
}

}  // namespace recon
