#include "worker/encode/lost_values.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/codec/codec.h"

namespace recon {
namespace {

constexpr uint64_t kSmallShare = 1000;
constexpr size_t kNamesMax = 3;

std::string TensorsOf(const ParamLayout& layout, const ShardPlacement& shard) {
  std::string names;
  size_t found = 0;
  for (const TensorPlacement& tensor : layout.tensors()) {
    if (tensor.offset >= shard.offset + shard.size || tensor.offset + tensor.size <= shard.offset) continue;
    if (++found <= kNamesMax) absl::StrAppend(&names, found > 1 ? ", " : "", tensor.name);
  }
  if (found > kNamesMax) absl::StrAppend(&names, " and ", found - kNamesMax, " more");
  return names;
}

}  // namespace

std::string DescribeLost(const ParamLayout& layout, const EncodedPush& push) {
  RECON_CHECK_EQ(push.shards.size(), layout.shard_count());
  const auto share = [&](size_t i) {
    return static_cast<double>(push.shards[i].lost) / static_cast<double>(layout.shards()[i].size);
  };
  size_t worst = 0;
  for (size_t i = 1; i < push.shards.size(); ++i) worst = share(i) > share(worst) ? i : worst;
  const EncodedShard& lost = push.shards[worst];
  const ShardPlacement& shard = layout.shards()[worst];
  if (lost.lost * kSmallShare <= shard.size) return "";
  return absl::StrCat(
      "of ", shard.size, " gradient values of ", TensorsOf(layout, shard), ", ", lost.lost,
      " do not fit codec ", CodecName(lost.codec),
      ": they were cut, or became 0 beside much larger ones. Codec bf16 or fp32 keeps them; this is "
      "said once, and counted in status (saturated_values, underflown_values)");
}

}  // namespace recon
