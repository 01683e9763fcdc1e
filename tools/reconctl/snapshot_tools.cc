// Verbs that take snapshots apart and put them together: diff, cat, restore. Only restore writes, to a
// directory that has no snapshot yet.

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
#include "common/json/message_json.h"
#include "common/snapshot/manifest.h"
#include "common/snapshot/reader_lease.h"
#include "common/snapshot/safetensors.h"
#include "common/snapshot/tensor_match.h"
#include "common/snapshot/tensor_reader.h"
#include "common/snapshot/tensor_remap.h"
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

struct TensorDifference {
  uint64_t values = 0, pages = 0, pages_changed = 0;
  uint64_t not_finite_before = 0, not_finite_after = 0;
  double largest = 0, sum_of_squares = 0, norm_before = 0, norm_after = 0;
};

// `tensor` of `a` and `other` of `b` have the same shape.
absl::StatusOr<TensorDifference> Compare(const TensorPlacement& tensor, TensorReader* a,
                                         const TensorPlacement& other, TensorReader* b) {
  std::vector<float> before;
  before.reserve(tensor.size);
  RECON_RETURN_IF_ERROR(a->Read(tensor, 0, [&](uint64_t, absl::Span<const float> values) {
    before.insert(before.end(), values.begin(), values.end());
    return absl::OkStatus();
  }));
  TensorDifference difference;
  size_t at = 0;
  RECON_RETURN_IF_ERROR(b->Read(other, 0, [&](uint64_t, absl::Span<const float> values) {
    ++difference.pages;
    const bool same = std::memcmp(&before[at], values.data(), values.size() * sizeof(float)) == 0;
    difference.pages_changed += same ? 0 : 1;
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

// NumPy's name of a safetensors type; null if it has none.
const char* NumpyType(absl::string_view dtype) {
  constexpr std::pair<const char*, const char*> kTypes[] = {
      {"BOOL", "|b1"}, {"U8", "|u1"},  {"I8", "|i1"},  {"I16", "<i2"}, {"U16", "<u2"},
      {"F16", "<f2"},  {"I32", "<i4"}, {"U32", "<u4"}, {"F32", "<f4"}, {"I64", "<i8"},
      {"U64", "<u8"},  {"F64", "<f8"}, {"C64", "<c8"},
  };
  for (const auto& [ours, theirs] : kTypes) {
    if (dtype == ours) return theirs;
  }
  return nullptr;
}

// NumPy's format, version 1.0: the header's length makes the data begin at a multiple of 64 bytes.
std::string NumpyHeader(const std::string& type, const std::vector<uint64_t>& shape) {
  std::string header = absl::StrCat("{'descr': '", type, "', 'fortran_order': False, 'shape': (",
                                    absl::StrJoin(shape, ", "), shape.size() == 1 ? "," : "", "), }");
  constexpr size_t kFixed = 10, kAlign = 64;
  header.append(kAlign - 1 - (kFixed + header.size()) % kAlign, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());
  return absl::StrCat(absl::string_view("\x93NUMPY\x01\x00", 8),
                      absl::string_view(reinterpret_cast<const char*>(&length), sizeof(length)), header);
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
  // By name: order and groups may be others.
  const TensorMatch match =
      MatchTensors(a.tensors->manifest().model(), TensorsOf(b.tensors->manifest(), nullptr), {});
  if (!match.differences.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("other models, the second differs:\n  ", absl::StrJoin(match.differences, "\n  ")));
  }
  Json list = Json::array();
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "VALUES", "PAGES CHANGED", "MAX |CHANGE|",
                                                 "RMS CHANGE", "NORM BEFORE", "NORM AFTER", "NOT FINITE"}};
  for (size_t i = 0; i < match.source.size(); ++i) {
    const TensorPlacement& tensor = a.tensors->layout().tensors()[i];
    const TensorPlacement& other = b.tensors->layout().tensors()[match.source[i]];
    RECON_ASSIGN_OR_RETURN(const TensorDifference d,
                           Compare(tensor, a.tensors.get(), other, b.tensors.get()));
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
    std::cout << JsonText(out) << "\n";
  } else {
    std::cout << Table(rows);
  }
  return absl::OkStatus();
}

absl::Status CatTensor(const SnapshotTarget& target, const std::string& name) {
  RECON_ASSIGN_OR_RETURN(const OpenSnapshot open, OpenGeneration(target.directory, target.generation));
  const auto write = [](absl::string_view bytes) {
    std::cout.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  const auto named = [&](const auto& tensor) { return tensor.name == name; };
  const auto& tensors = open.tensors->layout().tensors();
  const auto found = std::find_if(tensors.begin(), tensors.end(), named);
  if (found != tensors.end()) {
    write(NumpyHeader("<f4", found->shape));
    RECON_RETURN_IF_ERROR(open.tensors->Read(*found, 0, [&](uint64_t, absl::Span<const float> values) {
      write({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
      return absl::OkStatus();
    }));
  } else {
    const auto carried = open.carried == nullptr ? std::vector<SafetensorsEntry>() : open.carried->tensors();
    const auto other = std::find_if(carried.begin(), carried.end(), named);
    if (other == carried.end()) return absl::NotFoundError(absl::StrCat("the snapshot has no tensor ", name));
    const char* const type = NumpyType(other->dtype);
    if (type == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", name, " is ", other->dtype, ", which NumPy's format does not have"));
    }
    write(NumpyHeader(type, other->shape));
    write(open.carried->BytesOf(*other));
  }
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
  Replayer visitor(manifest, target.sequence, &params, &control);
  const auto end = ReadLog(FileSystem::Local(), target.log, FirstRecordFor(manifest), &visitor);
  params.replay()->EndReplay();
  if (!end.ok() && !absl::IsCancelled(end.status())) return end.status();
  if (params.position().sequence != target.sequence) {
    return absl::NotFoundError(absl::StrCat("the log goes to sequence ", params.position().sequence,
                                            ", asked for is ", target.sequence,
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
