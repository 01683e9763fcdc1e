// Verbs that take snapshots apart and put them together: diff, import, cat, restore. All but import and
// restore only read; those write to a directory that has no snapshot yet.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/codec/codec.h"
#include "common/snapshot/carried_tensors.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/reader_lease.h"
#include "common/snapshot/safetensors.h"
#include "common/snapshot/tensor_reader.h"
#include "common/storage/store_url.h"
#include "nlohmann/json.hpp"
#include "server/durability/snapshot_writer.h"
#include "server/recovery/log_replay.h"
#include "server/recovery/snapshot_service.h"
#include "tools/reconctl/open_snapshot.h"
#include "tools/reconctl/render.h"
#include "tools/reconctl/verbs.h"

namespace recon {
namespace {

using Json = nlohmann::ordered_json;

// A directory for a first snapshot.
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

struct TensorDifference {
  uint64_t values = 0, pages = 0, pages_changed = 0;
  uint64_t not_finite_before = 0, not_finite_after = 0;
  double largest = 0, sum_of_squares = 0, norm_before = 0, norm_after = 0;
};

absl::StatusOr<TensorDifference> Compare(const TensorPlacement& tensor, TensorReader* a, TensorReader* b) {
  std::vector<float> before;
  before.reserve(tensor.size);
  RECON_RETURN_IF_ERROR(a->Read(tensor, 0, [&](uint64_t, absl::Span<const float> values) {
    before.insert(before.end(), values.begin(), values.end());
    return absl::OkStatus();
  }));
  TensorDifference difference;
  size_t at = 0;
  RECON_RETURN_IF_ERROR(b->Read(tensor, 0, [&](uint64_t page, absl::Span<const float> values) {
    ++difference.pages;
    difference.pages_changed += a->PageHash(page, 0) != b->PageHash(page, 0) ? 1 : 0;
    for (const float after : values) {
      const float was = before[at++];
      if (!std::isfinite(was)) ++difference.not_finite_before;
      if (!std::isfinite(after)) ++difference.not_finite_after;
      if (!std::isfinite(was) || !std::isfinite(after)) continue;
      const double change = double{after} - double{was};
      difference.largest = std::max(difference.largest, std::fabs(change));
      difference.sum_of_squares += change * change;
      difference.norm_before += double{was} * was;
      difference.norm_after += double{after} * after;
    }
    return absl::OkStatus();
  }));
  difference.values = at;
  difference.norm_before = std::sqrt(difference.norm_before);
  difference.norm_after = std::sqrt(difference.norm_after);
  return difference;
}

// The model of a file: as it was exported, or else its tensors in the order of their bytes.
absl::StatusOr<ModelSpec> ModelOf(const SafetensorsHeader& header, const std::string& name) {
  std::map<std::string, const SafetensorsEntry*> entries;
  for (const SafetensorsEntry& entry : header.tensors) entries[entry.name] = &entry;
  ModelSpec model;
  model.set_name(name);
  const auto add = [&](const SafetensorsEntry& entry, const std::string& group) {
    TensorSpec* tensor = model.add_tensors();
    tensor->set_name(entry.name);
    tensor->set_group(group);
    for (const uint64_t dimension : entry.shape) tensor->add_shape(dimension);
  };
  const auto found = header.metadata.find(kModelMetadata);
  if (found == header.metadata.end()) {
    for (const SafetensorsEntry& entry : header.tensors) add(entry, "");
    return model;
  }
  const Json json = Json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  const absl::Status broken =
      absl::DataLossError(absl::StrCat("safetensors: ", kModelMetadata, " is not a model"));
  if (!json.is_object() || !json.contains("name") || !json["name"].is_string() || !json.contains("tensors") ||
      !json["tensors"].is_array()) {
    return broken;
  }
  if (name.empty()) model.set_name(json["name"].get<std::string>());
  for (const Json& tensor : json["tensors"]) {
    if (!tensor.is_object() || !tensor.contains("name") || !tensor["name"].is_string() ||
        !tensor.contains("group") || !tensor["group"].is_string()) {
      return broken;
    }
    const auto entry = entries.find(tensor["name"].get<std::string>());
    if (entry == entries.end()) {
      return absl::DataLossError(absl::StrCat("the file has no tensor ", tensor["name"].get<std::string>()));
    }
    add(*entry->second, tensor["group"].get<std::string>());
  }
  return model;
}

absl::StatusOr<CodecId> CodecOf(const SafetensorsEntry& entry) {
  if (entry.dtype == "F32") return CodecId::kFp32;
  if (entry.dtype == "F16") return CodecId::kFp16;
  if (entry.dtype == "BF16") return CodecId::kBf16;
  return absl::InvalidArgumentError(
      absl::StrCat("tensor ", entry.name, " is ", entry.dtype, "; F32, F16 and BF16 can be imported"));
}

// Fills the pages of one tensor from its bytes in the file.
absl::Status LoadTensor(const std::string& path, const SafetensorsEntry& entry, uint64_t data_begin,
                        const TensorPlacement& placement, const ParamLayout& layout,
                        std::vector<ShardCut>* shards) {
  RECON_ASSIGN_OR_RETURN(const CodecId codec, CodecOf(entry));
  const uint64_t width = EncodedBytes(codec, 1);
  for (uint32_t number = 0; number < layout.shard_count(); ++number) {
    const ShardPlacement& shard = layout.shards()[number];
    const uint64_t begin = std::max(placement.offset, shard.offset);
    const uint64_t end = std::min(placement.offset + placement.size, shard.offset + shard.size);
    for (uint64_t at = begin; at < end;) {
      const uint64_t in_shard = at - shard.offset;
      const uint64_t count = std::min<uint64_t>(end - at, kPageParams - in_shard % kPageParams);
      RECON_ASSIGN_OR_RETURN(
          const std::string bytes,
          FileSystem::Local()->Read(path, data_begin + entry.begin + (at - placement.offset) * width,
                                    count * width));
      bool cloned = false;
      float* page = (*shards)[number].pages[0][in_shard / kPageParams].Writable(&cloned);
      Decode(codec, reinterpret_cast<const uint8_t*>(bytes.data()), count, page + in_shard % kPageParams);
      at += count;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Manifest> NewestUpTo(const SnapshotReader& reader, uint64_t sequence) {
  RECON_ASSIGN_OR_RETURN(const std::vector<Generation> generations, reader.List());
  uint64_t oldest = 0;
  for (auto it = generations.rbegin(); it != generations.rend(); ++it) {
    RECON_ASSIGN_OR_RETURN(Manifest manifest, reader.ReadManifest(*it));
    if (manifest.sequence() <= sequence) return manifest;
    oldest = manifest.sequence();
  }
  if (generations.empty()) return absl::NotFoundError("there is no snapshot");
  return absl::NotFoundError(
      absl::StrCat("the oldest snapshot is of sequence ", oldest, ", asked for is ", sequence));
}

}  // namespace

absl::Status DiffSnapshots(const DiffTarget& target) {
  RECON_ASSIGN_OR_RETURN(const OpenSnapshot a, OpenGeneration(target.directory, target.before));
  RECON_ASSIGN_OR_RETURN(
      const OpenSnapshot b,
      OpenGeneration(target.other.empty() ? target.directory : target.other, target.after));
  const std::string difference =
      ModelDifference(a.tensors->manifest().model(), b.tensors->manifest().model());
  if (!difference.empty()) return absl::InvalidArgumentError(absl::StrCat("other models: ", difference));
  Json list = Json::array();
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "VALUES", "PAGES CHANGED", "MAX |CHANGE|",
                                                 "RMS CHANGE", "NORM BEFORE", "NORM AFTER", "NOT FINITE"}};
  for (const TensorPlacement& tensor : a.tensors->layout().tensors()) {
    RECON_ASSIGN_OR_RETURN(const TensorDifference d, Compare(tensor, a.tensors.get(), b.tensors.get()));
    const double rms = std::sqrt(d.sum_of_squares / static_cast<double>(d.values));
    list.push_back({{"tensor", tensor.name},
                    {"values", d.values},
                    {"pages", d.pages},
                    {"pages_changed", d.pages_changed},
                    {"max_change", d.largest},
                    {"rms_change", rms},
                    {"norm_before", d.norm_before},
                    {"norm_after", d.norm_after},
                    {"not_finite_before", d.not_finite_before},
                    {"not_finite_after", d.not_finite_after}});
    rows.push_back({tensor.name, absl::StrCat(d.values), absl::StrCat(d.pages_changed, " of ", d.pages),
                    absl::StrFormat("%.4g", d.largest), absl::StrFormat("%.4g", rms),
                    absl::StrFormat("%.6g", d.norm_before), absl::StrFormat("%.6g", d.norm_after),
                    absl::StrCat(d.not_finite_before, " -> ", d.not_finite_after)});
  }
  if (target.json) {
    const Json out = {{"before", a.tensors->manifest().generation()},
                      {"after", b.tensors->manifest().generation()},
                      {"equal", a.tensors->manifest().state_root() == b.tensors->manifest().state_root()},
                      {"tensors", list}};
    std::cout << out.dump() << "\n";
  } else {
    std::cout << Table(rows);
  }
  return absl::OkStatus();
}

absl::Status ImportSnapshot(const ImportTarget& target) {
  FileSystem* files = FileSystem::Local();
  RECON_ASSIGN_OR_RETURN(const uint64_t file_bytes, files->Size(target.file));
  RECON_ASSIGN_OR_RETURN(const std::string first,
                         files->Read(target.file, 0, std::min<uint64_t>(8, file_bytes)));
  RECON_ASSIGN_OR_RETURN(const uint64_t length, SafetensorsHeaderLength(first, file_bytes));
  RECON_ASSIGN_OR_RETURN(const std::string json, files->Read(target.file, 8, length));
  RECON_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                         ParseSafetensorsHeader(json, file_bytes - 8 - length));
  RECON_ASSIGN_OR_RETURN(const ModelSpec model, ModelOf(header, target.model));
  if (model.name().empty()) return absl::InvalidArgumentError("--model is needed: the file names none");
  RECON_ASSIGN_OR_RETURN(const ParamLayout layout, ParamLayout::Create(model));
  std::map<std::string, const SafetensorsEntry*> entries;
  for (const SafetensorsEntry& entry : header.tensors) entries[entry.name] = &entry;
  std::vector<ShardCut> shards(layout.shard_count());
  for (uint32_t i = 0; i < layout.shard_count(); ++i) {
    shards[i].pages.resize(1);
    for (uint32_t page = 0; page < layout.shards()[i].pages(); ++page) {
      shards[i].pages[0].push_back(PageRef::Zeroed());
    }
  }
  for (const TensorPlacement& tensor : layout.tensors()) {
    RECON_RETURN_IF_ERROR(
        LoadTensor(target.file, *entries[tensor.name], header.header_bytes, tensor, layout, &shards));
  }
  RECON_ASSIGN_OR_RETURN(const auto store, OpenEmpty(target.output));
  SnapshotWriter::Description description;
  description.optimizer = OptimizerName(OptimizerKind::kSgd);
  description.created_unix_ms = absl::ToUnixMillis(WallNow());
  description.reason = "imported";
  RECON_ASSIGN_OR_RETURN(const Manifest manifest,
                         SnapshotWriter(store.get(), {}).Write(layout, shards, description));
  std::cout << layout.tensors().size() << " tensors, " << layout.params() << " parameters to "
            << target.output << ", state root " << ToHex(manifest.state_root()) << "\n";
  return absl::OkStatus();
}

absl::Status CatTensor(const SnapshotTarget& target, const std::string& name) {
  RECON_ASSIGN_OR_RETURN(const OpenSnapshot open, OpenGeneration(target.directory, target.generation));
  const auto& tensors = open.tensors->layout().tensors();
  const auto found =
      std::find_if(tensors.begin(), tensors.end(), [&](const TensorPlacement& t) { return t.name == name; });
  if (found == tensors.end()) return absl::NotFoundError(absl::StrCat("the snapshot has no tensor ", name));
  // NumPy's format, version 1.0: the header's length makes the data begin at a multiple of 64 bytes.
  std::string header =
      absl::StrCat("{'descr': '<f4', 'fortran_order': False, 'shape': (", absl::StrJoin(found->shape, ", "),
                   found->shape.size() == 1 ? "," : "", "), }");
  constexpr size_t kFixed = 10, kAlign = 64;
  header.append(kAlign - 1 - (kFixed + header.size()) % kAlign, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  std::cout << std::string("\x93NUMPY\x01\x00", 8);
  std::cout.write(reinterpret_cast<const char*>(&length), sizeof(length));
  std::cout << header;
  RECON_RETURN_IF_ERROR(open.tensors->Read(*found, 0, [](uint64_t, absl::Span<const float> values) {
    std::cout.write(reinterpret_cast<const char*>(values.data()),
                    static_cast<std::streamsize>(values.size() * sizeof(float)));
    return absl::OkStatus();
  }));
  std::cout.flush();
  return std::cout.good() ? absl::OkStatus()
                          : absl::ResourceExhaustedError("standard output cannot be written");
}

absl::Status RestoreSnapshot(const RestoreTarget& target) {
  RECON_ASSIGN_OR_RETURN(const auto store, OpenStore(target.directory, /*writer=*/false));
  const SnapshotReader reader(store.get());
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, NewestUpTo(reader, target.sequence));
  if (ServersOf(manifest) > 1) {
    return absl::UnimplementedError(absl::StrCat("snapshot ", manifest.generation(), " is of ",
                                                 ServersOf(manifest),
                                                 " servers, each with a log and sequences of its own"));
  }
  RECON_ASSIGN_OR_RETURN(const auto lease,
                         ReaderLease::TakeIfWritable(store.get(), Generation(manifest.generation())));
  Metrics metrics;
  ParamServer::Options options;
  RECON_ASSIGN_OR_RETURN(options.state, ParseStateOwner(manifest.optimizer()));
  options.rules.optimizer.kind = options.state->kind;
  options.rules.cluster_epoch = 0;  // No segment's: each brings its own rules.
  options.apply_threads = 2;
  ParamServer params(options, &metrics);
  RECON_RETURN_IF_ERROR(params.DefineModel(manifest.model()));
  RECON_RETURN_IF_ERROR(params.Restore(reader, manifest));
  RECON_ASSIGN_OR_RETURN(ControlState control, DecodeControl(manifest.control(), manifest.model()));
  Replayer visitor(manifest.job_id(), target.sequence, &params, &control);
  const auto end = ReadLog(FileSystem::Local(), target.log, FirstRecordFor(manifest), &visitor);
  params.EndReplay();
  if (!end.ok() && !absl::IsCancelled(end.status())) return end.status();
  if (params.sequence() != target.sequence) {
    return absl::NotFoundError(absl::StrCat("the log goes to sequence ", params.sequence(), ", asked for is ",
                                            target.sequence,
                                            end.ok() && !end->trailing.empty() ? "; " + end->trailing : ""));
  }
  RECON_ASSIGN_OR_RETURN(const auto output, OpenEmpty(target.output));
  SnapshotService::Options service_options;
  service_options.optimizer = manifest.optimizer();
  if (manifest.has_control()) service_options.control = [&](uint64_t) { return control; };
  SnapshotService service(service_options, &params, output.get(), &metrics);
  absl::StatusOr<SnapshotReply> reply = absl::UnknownError("no snapshot was taken");
  RECON_ASSIGN_OR_RETURN(const auto carried, ReadCarried(store.get(), manifest));
  service.SetCarried(carried);
  service.Take("restored", [&](const absl::StatusOr<SnapshotReply>& taken) { reply = taken; });
  service.Flush();
  RECON_RETURN_IF_ERROR(reply.status());
  std::cout << "state after sequence " << target.sequence << " to " << target.output << ", state root "
            << reply->state_root() << "\n";
  return absl::OkStatus();
}

}  // namespace recon
