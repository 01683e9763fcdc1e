// reconctl snapshot import: weights from elsewhere as a snapshot that a job begins with.

#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/limits.h"
#include "common/base/memory_limit.h"
#include "common/base/plain_text.h"
#include "common/base/status_macros.h"
#include "common/snapshot/carried_tensors.h"
#include "common/snapshot/float_values.h"
#include "common/snapshot/tensor_match.h"
#include "common/snapshot/weight_files.h"
#include "server/durability/snapshot_writer.h"
#include "tools/reconctl/name_rules.h"
#include "tools/reconctl/open_snapshot.h"
#include "tools/reconctl/recorded_model.h"
#include "tools/reconctl/verbs.h"
#include "worker/model/model_spec.h"

namespace recon {
namespace {

// For the name of a model of which only the tensors are known.
constexpr char kUnnamed[] = "imported";
constexpr uint64_t kCompareBytes = uint64_t{1} << 20;
constexpr uint64_t kFirstCompareBytes = uint64_t{4} << 10;
// Tensors that are left over and compared with the model's, to find tied ones.
constexpr int kTiedLookedForMax = 16;

// The files' tensors under the names that they have from here on.
struct Selection {
  std::vector<WeightFiles::Tensor> tensors;
  std::vector<OfferedTensor> offered;  // The same, for MatchTensors().
  TensorAliases aliases;
  std::set<std::string> skipped_state;
  std::optional<ModelSpec> recorded;  // Without shapes.
};

// What became of the values.
struct Notices {
  std::map<std::string, size_t> converted;  // By type.
  Rounding rounding;
  uint64_t values_rounded_from = 0;
  std::vector<std::string> non_finite;  // Of a tensor that has any: its name and how many.
};

// Counts values that are NaN or infinite, of one tensor.
class NonFinite {
 public:
  void Count(absl::Span<const float> values) {
    for (const float value : values) {
      nan_ += std::isnan(value) ? 1 : 0;
      infinite_ += std::isinf(value) ? 1 : 0;
    }
    of_ += values.size();
  }
  void Tell(const std::string& name, Notices* notices) const {
    if (nan_ + infinite_ == 0) return;
    notices->non_finite.push_back(absl::StrCat(ShownName(name), " has ", nan_, " NaN and ", infinite_,
                                               " infinite of ", of_, " values"));
  }

 private:
  uint64_t nan_ = 0, infinite_ = 0, of_ = 0;
};

// A tensor of an exported optimizer's state: NAME.exp_avg and so on, beside NAME.
bool IsState(const std::string& name, const std::set<std::string>& names) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || names.count(name.substr(0, dot)) == 0) return false;
  const std::string suffix = name.substr(dot + 1);
  return suffix == "exp_avg" || suffix == "exp_avg_sq" || suffix == "momentum_buffer";
}

absl::StatusOr<Selection> Select(const WeightFiles& files, NameRules* rules) {
  Selection selection;
  RECON_ASSIGN_OR_RETURN(const std::optional<RecordedModel> recorded, ReadRecordedModel(files.metadata()));
  std::set<std::string> trained;
  if (recorded) {
    ModelSpec& model = selection.recorded.emplace();
    model.set_name(recorded->model.name());
    for (const TensorSpec& tensor : recorded->model.tensors()) {
      trained.insert(tensor.name());
      if (rules->Skips(tensor.name()) || rules->Carries(tensor.name())) continue;
      TensorSpec* renamed = model.add_tensors();
      renamed->set_name(rules->Renamed(tensor.name()));
      renamed->set_group(tensor.group());
    }
    for (const auto& [name, tensor] : recorded->aliases) {
      selection.aliases[rules->Renamed(name)] = rules->Renamed(tensor);
    }
  }
  for (const auto& [name, tensor] : rules->aliases()) selection.aliases[name] = tensor;
  std::map<std::string, std::string> was;
  for (const WeightFiles::Tensor& tensor : files.tensors()) {
    const std::string& name = tensor.entry.name;
    if (rules->Skips(name)) continue;
    if (recorded && IsState(name, trained)) {
      selection.skipped_state.insert(name);
      continue;
    }
    const bool carries = rules->Carries(name) || (recorded && recorded->carried.count(name) > 0);
    selection.tensors.push_back(tensor);
    selection.tensors.back().entry.name = rules->Renamed(name);
    const SafetensorsEntry& entry = selection.tensors.back().entry;
    OfferedTensor& offered = selection.offered.emplace_back();
    offered = {entry.name, entry.dtype, entry.shape};
    offered.may_stay = carries || IsCarried(offered);
    const auto [other, added] = was.emplace(entry.name, name);
    if (!added) {
      return absl::InvalidArgumentError(absl::StrCat("--rename: ", ShownName(other->second), " and ",
                                                     ShownName(name), " are both named ",
                                                     ShownName(entry.name), " now"));
    }
  }
  RECON_RETURN_IF_ERROR(rules->CheckAllUsed());
  return selection;
}

void AddShape(const OfferedTensor& offered, TensorSpec* tensor) {
  for (const uint64_t dimension : offered.shape) tensor->add_shape(dimension);
}

// What is trained: the named model; or the one that the files were exported from; or what they have.
absl::StatusOr<ModelSpec> ModelFor(const std::string& name, const Selection& selection) {
  if (NamesModel(name)) {
    absl::StatusOr<ModelSpec> model = ModelSpecOf(name);
    // A file that is not there is a wrong flag.
    if (!model.ok()) return absl::InvalidArgumentError(model.status().message());
    return model;
  }
  ModelSpec model;
  if (selection.recorded) {
    model = *selection.recorded;
    std::map<std::string, const OfferedTensor*> offered;
    for (const OfferedTensor& tensor : selection.offered) offered[tensor.name] = &tensor;
    for (TensorSpec& tensor : *model.mutable_tensors()) {
      const auto found = offered.find(tensor.name());
      if (found != offered.end()) AddShape(*found->second, &tensor);
    }
  } else {
    for (const OfferedTensor& tensor : selection.offered) {
      if (tensor.may_stay || selection.aliases.count(tensor.name) > 0) continue;
      TensorSpec* spec = model.add_tensors();
      spec->set_name(tensor.name);
      AddShape(tensor, spec);
    }
    model.set_name(kUnnamed);
  }
  if (!name.empty()) model.set_name(name);
  if (model.tensors_size() > 0) return model;
  std::vector<std::string> types;
  for (const OfferedTensor& tensor : selection.offered) {
    types.push_back(absl::StrCat(ShownName(tensor.name), " ", tensor.dtype, " ", ShapeText(tensor.shape)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("nothing can be trained: no tensor is of a floating-point type and has a shape",
                   types.empty() ? "" : ": ", JoinDifferences(types, ", ", 1000)));
}

// Whether two tensors of the files have the same type, shape and bytes.
absl::StatusOr<bool> Equal(const WeightFiles& files, const WeightFiles::Tensor& a,
                           const WeightFiles::Tensor& b) {
  if (a.entry.dtype != b.entry.dtype || a.entry.shape != b.entry.shape) return false;
  // Those that differ do so early.
  uint64_t size = 0;
  for (uint64_t at = 0; at < a.bytes(); at += size) {
    size = std::min(at == 0 ? kFirstCompareBytes : kCompareBytes, a.bytes() - at);
    RECON_ASSIGN_OR_RETURN(const std::string x, files.Read(a, at, size));
    RECON_ASSIGN_OR_RETURN(const std::string y, files.Read(b, at, size));
    if (x != y) return false;
  }
  return true;
}

// The tensors that come along, and the aliases that are none of the model's names. Adds to the differences.
absl::StatusOr<std::shared_ptr<const CarriedTensors>> CarriedOf(const WeightFiles& files,
                                                                const Selection& selection,
                                                                const ModelSpec& model, TensorMatch* match) {
  std::set<std::string> modelled;
  for (const TensorSpec& tensor : model.tensors()) modelled.insert(tensor.name());
  std::map<std::string, const WeightFiles::Tensor*> by_name;
  for (const WeightFiles::Tensor& tensor : selection.tensors) by_name[tensor.entry.name] = &tensor;
  TensorAliases aliases;
  for (const auto& [name, other] : selection.aliases) {
    const auto target = by_name.find(other);
    if (target == by_name.end()) {
      match->differences.push_back(
          absl::StrCat("missing: ", ShownName(other), ", for which ", ShownName(name), " stands"));
      continue;
    }
    if (modelled.count(name) > 0) continue;
    aliases[name] = other;
    const auto own = by_name.find(name);
    if (own == by_name.end()) continue;
    RECON_ASSIGN_OR_RETURN(const bool equal, Equal(files, *own->second, *target->second));
    if (!equal) {
      match->differences.push_back(absl::StrCat("other values: ", ShownName(name), " does not equal ",
                                                ShownName(other), ", for which it is to stand"));
    }
  }
  std::vector<std::pair<SafetensorsEntry, std::string>> carried;
  uint64_t bytes = 0;
  for (const size_t index : match->rest) {
    const WeightFiles::Tensor& tensor = selection.tensors[index];
    if (!match->differences.empty()) break;  // Nothing is carried then.
    if (aliases.count(tensor.entry.name) > 0) continue;
    bytes += tensor.bytes();
    if (bytes > limits::kCarriedBytesMax) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "with ", ShownName(tensor.entry.name), ", the tensors that are not trained have ", bytes,
          " bytes, allowed are ", limits::kCarriedBytesMax, ": --skip those that need not come along"));
    }
    RECON_ASSIGN_OR_RETURN(std::string content, files.Read(tensor, 0, tensor.bytes()));
    carried.emplace_back(tensor.entry, std::move(content));
  }
  if (carried.empty() && aliases.empty()) return nullptr;
  RECON_ASSIGN_OR_RETURN(CarriedTensors made, CarriedTensors::Make(std::move(carried), std::move(aliases)));
  return std::make_shared<const CarriedTensors>(std::move(made));
}

// Fills the pages of one tensor of the model from its bytes in a file.
absl::Status LoadTensor(const WeightFiles& files, const WeightFiles::Tensor& tensor,
                        const TensorPlacement& placement, const ParamLayout& layout,
                        std::vector<ShardCut>* shards, Notices* notices) {
  const std::string& dtype = tensor.entry.dtype;
  const uint64_t width = FloatWidth(dtype);
  if (dtype != "F32") ++notices->converted[dtype];
  if (dtype == "F64") notices->values_rounded_from += placement.size;
  auto shard = std::upper_bound(layout.shards().begin(), layout.shards().end(), placement.offset,
                                [](uint64_t offset, const ShardPlacement& s) { return offset < s.offset; });
  const uint64_t end = placement.offset + placement.size;
  NonFinite non_finite;
  for (uint64_t at = placement.offset; at < end;) {
    const uint64_t in_shard = at - (shard - 1)->offset;
    const uint64_t count = std::min<uint64_t>(end - at, (shard - 1)->size - in_shard);
    RECON_ASSIGN_OR_RETURN(const std::string bytes,
                           files.Read(tensor, (at - placement.offset) * width, count * width));
    ShardCut& cut = (*shards)[static_cast<size_t>(shard - 1 - layout.shards().begin())];
    bool cloned = false;
    float* const values = cut.pages[0][0].Writable(&cloned);
    ToFloat(dtype, bytes.data(), count, values + in_shard, &notices->rounding);
    non_finite.Count(absl::MakeConstSpan(values + in_shard, count));
    at += count;
    ++shard;
  }
  non_finite.Tell(placement.name, notices);
  return absl::OkStatus();
}

// Of tensors that come along.
void CountNonFinite(const CarriedTensors& carried, Notices* notices) {
  constexpr uint64_t kPiece = 65536;
  std::vector<float> values(kPiece);
  for (const SafetensorsEntry& tensor : carried.tensors()) {
    if (!ConvertsToFloat(tensor.dtype)) continue;
    const absl::string_view content = carried.BytesOf(tensor);
    const uint64_t width = FloatWidth(tensor.dtype);
    NonFinite non_finite;
    for (uint64_t at = 0; at < content.size(); at += kPiece * width) {
      const uint64_t count = std::min(kPiece, (content.size() - at) / width);
      Rounding ignored;
      ToFloat(tensor.dtype, content.data() + at, count, values.data(), &ignored);
      non_finite.Count(absl::MakeConstSpan(values.data(), count));
    }
    non_finite.Tell(tensor.name, notices);
  }
}

void Tell(const Notices& notices, const Selection& selection, const CarriedTensors* carried) {
  for (const auto& [dtype, tensors] : notices.converted) {
    std::cout << "  converted from " << dtype << " to F32: " << tensors
              << (tensors == 1 ? " tensor" : " tensors") << (dtype == "F64" ? "" : ", without loss") << "\n";
  }
  if (notices.rounding.rounded > 0) {
    std::cerr << "reconctl: F64 to F32: " << notices.rounding.rounded << " of " << notices.values_rounded_from
              << " values were rounded";
    if (notices.rounding.overflowed > 0) {
      std::cerr << ", " << notices.rounding.overflowed << " of them to infinity";
    }
    std::cerr << "\n";
  }
  if (!notices.non_finite.empty()) {
    std::cerr << "reconctl: WARNING: what is trained from these becomes NaN: "
              << JoinDifferences(notices.non_finite, "; ", 2000) << "\n";
  }
  if (!selection.skipped_state.empty()) {
    std::cout << "  optimizer state, not imported: " << selection.skipped_state.size() << " tensors\n";
  }
  if (carried == nullptr) return;
  std::vector<std::string> names;
  for (const SafetensorsEntry& tensor : carried->tensors()) {
    names.push_back(absl::StrCat(ShownName(tensor.name), " ", tensor.dtype, " ", ShapeText(tensor.shape)));
  }
  if (!names.empty()) {
    std::cout << "  carried along, not trained: " << names.size()
              << " tensors: " << JoinDifferences(names, ", ", 1000) << "\n";
  }
  for (const auto& [name, tensor] : carried->aliases()) {
    std::cout << "  " << ShownName(name) << " stands for " << ShownName(tensor) << "\n";
  }
}

// What can be done about tensors that are missing or left over: the flags. Names those that equal another
// one.
absl::StatusOr<std::vector<std::string>> HintsFor(const WeightFiles& files, const Selection& selection,
                                                  const TensorMatch& match) {
  std::vector<std::string> hints;
  int left_over = 0;
  for (const size_t index : match.rest) {
    const OfferedTensor& tensor = selection.offered[index];
    if (tensor.may_stay || selection.aliases.count(tensor.name) > 0) continue;
    if (++left_over > kTiedLookedForMax) break;
    for (const size_t other : match.source) {
      if (other == index) continue;
      RECON_ASSIGN_OR_RETURN(const bool equal,
                             Equal(files, selection.tensors[index], selection.tensors[other]));
      if (!equal) continue;
      const std::string tied = ShownName(selection.offered[other].name);
      hints.push_back(absl::StrCat(ShownName(tensor.name), " equals ", tied, ": --alias ",
                                   ShownName(tensor.name), "=", tied, " if they are tied"));
      break;
    }
  }
  if (left_over > 0) {
    hints.push_back(
        "what is left over: --alias NAME=OTHER where it is tied to another, --skip NAME leaves it out, "
        "--carry NAME takes it along untrained");
  }
  const bool missing =
      std::any_of(match.differences.begin(), match.differences.end(),
                  [](const std::string& text) { return absl::StartsWith(text, "missing: "); });
  if (missing)
    hints.push_back("what is missing: --rename OLD=NEW, or --alias NAME=OTHER for what is tied to another");
  return hints;
}

absl::Status CheckMemory(const ParamLayout& layout) {
  const uint64_t bytes = layout.params() * sizeof(float);
  const uint64_t limit = MemoryLimit();
  if (bytes <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the model has ", bytes, " bytes as FP32, this process may use ", limit));
}

}  // namespace

absl::Status ImportSnapshot(const ImportTarget& target) {
  RECON_ASSIGN_OR_RETURN(NameRules rules,
                         NameRules::Parse(target.renames, target.skips, target.carries, target.aliases));
  RECON_ASSIGN_OR_RETURN(const WeightFiles files, WeightFiles::Open(target.files));
  RECON_ASSIGN_OR_RETURN(const Selection selection, Select(files, &rules));
  RECON_ASSIGN_OR_RETURN(const ModelSpec model, ModelFor(target.model, selection));
  TensorMatch match = MatchTensors(model, selection.offered, selection.aliases);
  RECON_ASSIGN_OR_RETURN(const auto carried, CarriedOf(files, selection, model, &match));
  if (!match.differences.empty()) {
    RECON_ASSIGN_OR_RETURN(const std::vector<std::string> hints, HintsFor(files, selection, match));
    return absl::InvalidArgumentError(absl::StrCat(
        absl::StrJoin(target.files, ", "), " and model ", model.name(), " differ, ", match.differences.size(),
        match.differences.size() == 1 ? " tensor" : " tensors", ":\n  ",
        absl::StrJoin(match.differences, "\n  "), hints.empty() ? "" : "\n", absl::StrJoin(hints, "\n")));
  }
  RECON_ASSIGN_OR_RETURN(const ParamLayout layout, ParamLayout::Create(model));
  RECON_RETURN_IF_ERROR(CheckMemory(layout));
  static_assert(kShardPagesMax == 1, "LoadTensor() takes a shard's values for one page");
  std::vector<ShardCut> shards(layout.shard_count());
  for (ShardCut& shard : shards) shard.pages = {{PageRef::Zeroed()}};
  Notices notices;
  for (size_t i = 0; i < layout.tensors().size(); ++i) {
    RECON_RETURN_IF_ERROR(LoadTensor(files, selection.tensors[match.source[i]], layout.tensors()[i], layout,
                                     &shards, &notices));
  }
  if (carried != nullptr) CountNonFinite(*carried, &notices);
  RECON_ASSIGN_OR_RETURN(const auto store, OpenEmpty(target.output));
  SnapshotWriter::Description description;
  description.optimizer = OptimizerName(OptimizerKind::kSgd);
  description.created_unix_ms = absl::ToUnixMillis(WallNow());
  description.reason = "imported";
  SnapshotWriter writer(store.get(), {});
  writer.SetCarried(carried);
  RECON_ASSIGN_OR_RETURN(const Manifest manifest, writer.Write(layout, std::move(shards), description));
  std::cout << layout.tensors().size() << " tensors, " << layout.params() << " parameters to "
            << EscapeControls(target.output) << ", state root " << ToHex(manifest.state_root()) << "\n";
  Tell(notices, selection, carried.get());
  return absl::OkStatus();
}

}  // namespace recon
