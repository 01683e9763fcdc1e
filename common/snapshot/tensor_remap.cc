#include "common/snapshot/tensor_remap.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/snapshot/float_values.h"

namespace recon {
namespace {

// What a status of gRPC's carries, and a reader takes in.
constexpr size_t kShownBytesMax = 2000;

TensorMatch Match(const ModelSpec& model, const Manifest& manifest, const CarriedTensors* carried) {
  return MatchTensors(model, TensorsOf(manifest, carried),
                      carried == nullptr ? TensorAliases() : carried->aliases());
}

}  // namespace

std::vector<OfferedTensor> TensorsOf(const Manifest& manifest, const CarriedTensors* carried) {
  std::vector<OfferedTensor> offered;
  for (const TensorSpec& tensor : manifest.model().tensors()) {
    offered.push_back(
        {tensor.name(), "F32", {tensor.shape().begin(), tensor.shape().end()}, /*may_stay=*/false});
  }
  if (carried == nullptr) return offered;
  for (const SafetensorsEntry& tensor : carried->tensors()) {
    offered.push_back({tensor.name, tensor.dtype, tensor.shape, /*may_stay=*/true});
  }
  return offered;
}

std::vector<std::string> DifferencesTo(const ModelSpec& model, const Manifest& manifest,
                                       const CarriedTensors* carried) {
  return Match(model, manifest, carried).differences;
}

absl::StatusOr<TensorRemap> TensorRemap::Create(const SnapshotReader& reader, const Manifest& manifest,
                                                std::shared_ptr<const CarriedTensors> carried,
                                                const ParamLayout& layout) {
  TensorMatch match = Match(layout.model(), manifest, carried.get());
  if (!match.differences.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("snapshot ", manifest.generation(), " does not fit model ",
                                                   layout.model().name(), ": ",
                                                   JoinDifferences(match.differences, "; ", kShownBytesMax)));
  }
  RECON_ASSIGN_OR_RETURN(ParamLayout theirs, ParamLayout::Create(manifest.model()));
  TensorRemap remap(reader, manifest, std::move(carried), layout, std::move(theirs));
  remap.source_ = std::move(match.source);
  remap.by_offset_.resize(layout.tensors().size());
  std::iota(remap.by_offset_.begin(), remap.by_offset_.end(), size_t{0});
  std::sort(remap.by_offset_.begin(), remap.by_offset_.end(),
            [&](size_t a, size_t b) { return layout.tensors()[a].offset < layout.tensors()[b].offset; });
  return remap;
}

absl::StatusOr<std::vector<PageRef>> TensorRemap::ReadShard(uint32_t shard) const {
  const ShardPlacement& placement = layout_->shards()[shard];
  static_assert(kShardPagesMax == 1, "a shard's values are one page");
  std::vector<PageRef> pages = {placement.size == kPageParams ? PageRef::New() : PageRef::Zeroed()};
  bool cloned;
  float* const values = pages[0].Writable(&cloned);
  LastRead last;
  const uint64_t end = placement.offset + placement.size;
  // The last tensor that begins at or before the shard.
  auto at =
      std::upper_bound(by_offset_.begin(), by_offset_.end(), placement.offset,
                       [&](uint64_t offset, size_t t) { return offset < layout_->tensors()[t].offset; });
  for (--at; at != by_offset_.end(); ++at) {
    const TensorPlacement& tensor = layout_->tensors()[*at];
    if (tensor.offset >= end) break;
    const uint64_t from = std::max(tensor.offset, placement.offset);
    const uint64_t count = std::min(tensor.offset + tensor.size, end) - from;
    float* const out = values + (from - placement.offset);
    const size_t source = source_[*at];
    if (source < theirs_.tensors().size()) {
      RECON_RETURN_IF_ERROR(
          Copy(theirs_.tensors()[source].offset + (from - tensor.offset), count, out, &last));
      continue;
    }
    const SafetensorsEntry& entry = carried_->tensors()[source - theirs_.tensors().size()];
    Rounding rounding;
    ToFloat(entry.dtype, carried_->BytesOf(entry).data() + (from - tensor.offset) * FloatWidth(entry.dtype),
            count, out, &rounding);
  }
  return pages;
}

absl::Status TensorRemap::Copy(uint64_t from, uint64_t count, float* out, LastRead* last) const {
  const auto& shards = theirs_.shards();
  auto shard = std::upper_bound(shards.begin(), shards.end(), from,
                                [](uint64_t offset, const ShardPlacement& s) { return offset < s.offset; });
  const int roles = static_cast<int>(manifest_->state_planes()) + 1;
  for (--shard; count > 0; ++shard) {
    const int chunk = static_cast<int>(shard - shards.begin()) * roles;
    if (chunk != last->chunk) {
      RECON_ASSIGN_OR_RETURN(last->pages, reader_->ReadChunk(*manifest_, chunk));
      last->chunk = chunk;
    }
    const uint64_t in_shard = from - shard->offset;
    const uint64_t piece = std::min<uint64_t>(count, shard->size - in_shard);
    std::memcpy(out, last->pages[0].data() + in_shard, piece * sizeof(float));
    from += piece;
    out += piece;
    count -= piece;
  }
  return absl::OkStatus();
}

}  // namespace recon
