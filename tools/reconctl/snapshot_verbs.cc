#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/data_epoch.h"
#include "common/base/data_lock.h"
#include "common/base/hash.h"
#include "common/base/plain_text.h"
#include "common/base/status_macros.h"
#include "common/json/message_json.h"
#include "common/snapshot/carried_tensors.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/reader_lease.h"
#include "common/snapshot/snapshot_reader.h"
#include "common/storage/store_url.h"
#include "nlohmann/json.hpp"
#include "server/durability/snapshot_writer.h"
#include "tools/reconctl/render.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

// Of the shard that had most: under asp pushes, under bsp steps. (The first step that is not closed stands
// still while workers count steps of their own.)
uint64_t UpdatesOf(const Manifest& manifest) {
  uint64_t most = 0;
  for (const ShardEntry& shard : manifest.shards()) most = std::max(most, shard.version());
  return most;
}

Json Summary(const Manifest& manifest) {
  const SnapshotSizes sizes = SizesOf(manifest);
  Json finite;  // Null where nobody has looked.
  if (manifest.has_non_finite_values()) finite = manifest.non_finite_values() == 0;
  return {{"generation", manifest.generation()},
          {"finite", finite},
          {"non_finite_values", manifest.non_finite_values()},
          {"history", manifest.history()},
          {"created_unix_ms", manifest.created_unix_ms()},
          {"reason", manifest.reason()},
          {"model", manifest.model().name()},
          {"sequence", manifest.sequence()},
          {"frontier_step", manifest.frontier_step()},
          {"updates", UpdatesOf(manifest)},
          {"servers", ServersOf(manifest)},
          {"cluster_epoch", manifest.cluster_epoch()},
          {"optimizer", manifest.optimizer()},
          {"raw_bytes", sizes.raw},
          {"stored_bytes", sizes.stored},
          {"new_bytes", sizes.own},
          {"state_root", ToHex(manifest.state_root())}};
}

// Whether all values are finite: "yes", "?" where nobody has looked, or how many are not.
std::string Finiteness(const Manifest& manifest) {
  if (!manifest.has_non_finite_values()) return "?";
  return manifest.non_finite_values() == 0 ? "yes" : absl::StrCat("NO: ", manifest.non_finite_values());
}

void SayPin(const SnapshotTarget& target, bool pinned, bool before) {
  if (target.json) {
    std::cout << JsonText({{"generation", target.generation}, {"pinned", pinned}, {"was_pinned", before}})
              << "\n";
    return;
  }
  std::cout << "snapshot " << target.generation
            << (pinned   ? before ? " was pinned already" : " is pinned: no rule removes it"
                : before ? " is pinned no longer: the rules apply to it"
                         : " was not pinned")
            << "\n";
}

// Tensors that are not trained, and names that stand for others; `carried` may be null.
void AddCarried(const CarriedTensors* carried, Json* json, std::vector<std::vector<std::string>>* rows) {
  (*json)["carried"] = Json::array();
  (*json)["aliases"] = Json::array();
  if (carried == nullptr) return;
  for (const SafetensorsEntry& tensor : carried->tensors()) {
    (*json)["carried"].push_back({{"name", tensor.name}, {"dtype", tensor.dtype}, {"shape", tensor.shape}});
    rows->push_back({tensor.name, ShapeText(tensor.shape), absl::StrCat("not trained, ", tensor.dtype)});
  }
  for (const auto& [name, tensor] : carried->aliases()) {
    (*json)["aliases"].push_back({{"name", name}, {"tensor", tensor}});
    rows->push_back({name, "", absl::StrCat("stands for ", tensor)});
  }
}

}  // namespace

absl::StatusOr<Generation> OrNewest(uint64_t number, const SnapshotReader& reader,
                                    const std::string& directory) {
  if (number != 0) return Generation(number);
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  if (generations.empty()) return absl::NotFoundError(absl::StrCat(directory, " holds no snapshot"));
  return generations.back();
}

absl::Status ListSnapshots(const SnapshotTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto store, OpenStore(target.directory, /*writer=*/false));
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  RECON_ASSIGN_OR_RETURN(const std::set<Generation> pins, reader.Pinned());
  Json list = Json::array();
  std::vector<std::vector<std::string>> rows = {{"GENERATION", "PINNED", "FINITE", "CREATED", "REASON",
                                                 "MODEL", "SEQUENCE", "STEP", "STORED", "RAW", "STATE ROOT"}};
  absl::Status damage;
  for (const Generation generation : generations) {
    const bool pinned = pins.count(generation) > 0;
    const std::string shown_pin = pinned ? "yes" : "-";
    const absl::StatusOr<Manifest> manifest = reader.ReadManifest(generation);
    if (!manifest.ok()) {
      damage.Update(manifest.status());
      list.push_back({{"generation", generation.value()},
                      {"pinned", pinned},
                      {"error", std::string(manifest.status().message())}});
      rows.push_back({absl::StrCat(generation.value()), shown_pin, "-", "-", "DAMAGED",
                      std::string(manifest.status().message())});
      continue;
    }
    const SnapshotSizes sizes = SizesOf(*manifest);
    list.push_back(Summary(*manifest));
    list.back()["pinned"] = pinned;
    rows.push_back({absl::StrCat(generation.value()), shown_pin, Finiteness(*manifest),
                    HumanTime(manifest->created_unix_ms()), manifest->reason(), manifest->model().name(),
                    absl::StrCat(manifest->sequence()), absl::StrCat(UpdatesOf(*manifest)),
                    HumanBytes(sizes.stored), HumanBytes(sizes.raw), ToHex(manifest->state_root())});
  }
  std::cout << (target.json ? JsonText(list) + "\n" : Table(rows));
  return damage;
}

absl::Status ShowSnapshot(const SnapshotTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto store, OpenStore(target.directory, /*writer=*/false));
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(const Generation generation, OrNewest(target.generation, reader, target.directory));
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, reader.ReadManifest(generation));
  Json json = Summary(manifest);
  json["tensors"] = Json::array();
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "SHAPE", "GROUP"}};
  for (const TensorSpec& tensor : manifest.model().tensors()) {
    const std::string group = tensor.group().empty() ? "default" : tensor.group();
    json["tensors"].push_back({{"name", tensor.name()}, {"shape", tensor.shape()}, {"group", group}});
    rows.push_back({tensor.name(), absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]"), group});
  }
  RECON_ASSIGN_OR_RETURN(const auto carried, ReadCarried(store.get(), manifest));
  AddCarried(carried.get(), &json, &rows);
  json["shards"] = Json::array();
  std::vector<std::vector<std::string>> shard_rows = {{"SHARD", "VERSION", "WORKERS IN LEDGER"}};
  for (const ShardEntry& shard : manifest.shards()) {
    const int workers = LedgerOf(manifest, shard.shard()).entries_size();
    json["shards"].push_back({{"shard", shard.shard()}, {"version", shard.version()}, {"ledger", workers}});
    shard_rows.push_back({absl::StrCat(shard.shard()), absl::StrCat(shard.version()), absl::StrCat(workers)});
  }
  json["workers"] = manifest.control().workers_size();
  json["passes"] = Json::array();
  std::vector<std::vector<std::string>> pass_rows = {{"DATA EPOCH", "KIND", "SPLITS COMPLETED", "SAMPLES"}};
  for (const CompletedPass& pass : manifest.control().passes()) {
    const std::string kind = pass.kind() == LEASE_TRAIN ? "training" : "evaluation";
    const uint64_t samples = std::accumulate(pass.samples().begin(), pass.samples().end(), uint64_t{0});
    const uint32_t data_epoch = ShownDataEpoch(pass.data_epoch(), pass.kind() == LEASE_TRAIN);
    json["passes"].push_back(
        {{"data_epoch", data_epoch}, {"kind", kind}, {"splits", pass.samples_size()}, {"samples", samples}});
    pass_rows.push_back(
        {absl::StrCat(data_epoch), kind, absl::StrCat(pass.samples_size()), absl::StrCat(samples)});
  }
  if (target.json) {
    std::cout << JsonText(json) << "\n";
    return absl::OkStatus();
  }
  for (const auto& [key, value] : json.items()) {
    if (!value.is_array())
      std::cout << absl::StrFormat("%-16s ", key)
                << EscapeControls(value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
  }
  std::cout << "\n" << Table(rows) << "\n" << Table(shard_rows) << "\n" << Table(pass_rows);
  return absl::OkStatus();
}

absl::Status VerifySnapshots(const SnapshotTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto store, OpenStore(target.directory, /*writer=*/false));
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
    const auto lease = ReaderLease::TakeIfWritable(store.get(), generation);
    // Of all that there were: one may be removed meanwhile.
    if (!lease.ok() && target.generation == 0) continue;
    RECON_RETURN_IF_ERROR(lease.status());
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
                << (status.ok() ? "ok" : EscapeControls(status.message())) << "\n";
    }
  }
  if (target.json) std::cout << JsonText(list) << "\n";
  return damage;
}

absl::Status ShowSnapshotStats(const SnapshotTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto store, OpenStore(target.directory, /*writer=*/false));
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(const Generation generation, OrNewest(target.generation, reader, target.directory));
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, reader.ReadManifest(generation));
  RECON_ASSIGN_OR_RETURN(const ParamLayout layout, ParamLayout::Create(manifest.model()));
  const int roles = static_cast<int>(manifest.state_planes()) + 1;
  // A page may hold several tensors: each has its share of it.
  std::vector<double> stored(layout.tensors().size());
  std::vector<PlaneStats> planes(static_cast<size_t>(roles));
  for (int i = 0; i < manifest.chunks_size(); ++i) {
    const ChunkEntry& chunk = manifest.chunks(i);
    RECON_RETURN_IF_ERROR(reader.ReadChunk(manifest, i, &planes[chunk.role()]).status());
    const ShardPlacement& shard = layout.shards()[chunk.shard()];
    for (int page = 0; page < chunk.page_hash_size(); ++page) {
      const uint64_t begin = shard.offset + static_cast<uint64_t>(page) * kPageParams;
      const uint64_t end = begin + shard.PageSize(static_cast<uint32_t>(page));
      for (size_t t = 0; t < stored.size(); ++t) {
        const TensorPlacement& tensor = layout.tensors()[t];
        const uint64_t low = std::max(begin, tensor.offset);
        const uint64_t high = std::min(end, tensor.offset + tensor.size);
        if (low < high) {
          stored[t] += static_cast<double>(chunk.stored_bytes(page)) * static_cast<double>(high - low) /
                       static_cast<double>(end - begin);
        }
      }
    }
  }
  const SnapshotSizes sizes = SizesOf(manifest);
  Json json = {{"generation", generation.value()}, {"raw_bytes", sizes.raw},   {"stored_bytes", sizes.stored},
               {"new_bytes", sizes.own},           {"tensors", Json::array()}, {"planes", Json::array()}};
  std::vector<std::vector<std::string>> tensor_rows = {{"TENSOR", "VALUES", "RAW", "STORED", "RATIO"}};
  for (size_t t = 0; t < stored.size(); ++t) {
    const TensorPlacement& tensor = layout.tensors()[t];
    const uint64_t raw = tensor.size * sizeof(float) * static_cast<uint64_t>(roles);
    const double ratio = static_cast<double>(raw) / stored[t];
    json["tensors"].push_back({{"tensor", tensor.name}, {"raw_bytes", raw}, {"stored_bytes", stored[t]}});
    tensor_rows.push_back({tensor.name, absl::StrCat(tensor.size), HumanBytes(raw),
                           HumanBytes(static_cast<uint64_t>(stored[t])), absl::StrFormat("%.2f", ratio)});
  }
  std::vector<std::vector<std::string>> plane_rows = {{"ROLE", "PLANE", "RAW", "STORED", "SHARE"}};
  for (int role = 0; role < roles; ++role) {
    for (int plane = 0; plane < 4; ++plane) {
      const PlaneStats& stats = planes[static_cast<size_t>(role)];
      const uint64_t raw = stats.raw_bytes[plane];
      json["planes"].push_back({{"role", role},
                                {"plane", plane},
                                {"raw_bytes", raw},
                                {"stored_bytes", stats.stored_bytes[plane]}});
      plane_rows.push_back(
          {role == 0 ? "parameters" : absl::StrCat("state ", role),
           plane == 3 ? "exponents" : absl::StrCat("mantissas ", plane), HumanBytes(raw),
           HumanBytes(stats.stored_bytes[plane]),
           absl::StrFormat("%.1f %%", 100.0 * static_cast<double>(stats.stored_bytes[plane]) /
                                          static_cast<double>(raw))});
    }
  }
  std::cout << (target.json ? JsonText(json) + "\n" : Table(tensor_rows) + "\n" + Table(plane_rows));
  return absl::OkStatus();
}

absl::Status PinSnapshot(const SnapshotTarget& target, bool remove) {
  // Not as the writer: that is a server's, which may be running.
  RECON_ASSIGN_OR_RETURN(const auto store, OpenStore(target.directory, /*writer=*/false));
  const Generation generation(target.generation);
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(const std::set<Generation> pins, reader.Pinned());
  const bool before = pins.count(generation) > 0;
  if (remove) {
    // A pin outlives a snapshot that is gone for another reason: it can be removed, too.
    if (!before) RECON_RETURN_IF_ERROR(reader.ReadManifest(generation).status());
    RECON_RETURN_IF_ERROR(store->Delete(PinName(generation)));
    SayPin(target, /*pinned=*/false, before);
    return absl::OkStatus();
  }
  RECON_RETURN_IF_ERROR(reader.ReadManifest(generation).status());
  const absl::Status pinned = store->PutIfAbsent(PinName(generation), "");
  if (!pinned.ok() && !absl::IsAlreadyExists(pinned)) return pinned;
  // A server may be removing it: it looks for pins when its mark is there.
  const absl::Status still = CheckNotRetired(store.get(), generation);
  if (!still.ok() && pinned.ok()) RECON_RETURN_IF_ERROR(store->Delete(PinName(generation)));
  RECON_RETURN_IF_ERROR(still);
  SayPin(target, /*pinned=*/true, before);
  return absl::OkStatus();
}

absl::Status PruneSnapshots(const PruneTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto store, OpenStore(target.directory, /*writer=*/false));
  std::optional<DataLock> lock;
  if (!target.dry_run) {
    RECON_ASSIGN_OR_RETURN(const StoreUrl where, ParseStoreUrl(target.directory));
    if (where.local()) {
      RECON_ASSIGN_OR_RETURN(DataLock held, DataLock::Acquire(where.path));
      lock.emplace(std::move(held));
    } else if (!target.no_server) {
      return absl::FailedPreconditionError(
          absl::StrCat(target.directory, ": no lock says whether a server runs there; --no-server does"));
    }
  }
  SnapshotWriter::Options options;
  options.keep = target.keep;
  SnapshotWriter writer(store.get(), options);
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> expired, writer.Expired());
  Json list = Json::array();
  for (const Generation generation : expired) {
    list.push_back(generation.value());
    if (!target.json) {
      std::cout << (target.dry_run ? "would remove snapshot " : "removes snapshot ") << generation.value()
                << "\n";
    }
  }
  if (target.json) std::cout << JsonText({{"removed", list}, {"dry_run", target.dry_run}}) << "\n";
  if (!target.json && expired.empty()) std::cout << "nothing to remove\n";
  return target.dry_run ? absl::OkStatus() : writer.CollectGarbage();
}

}  // namespace recon
