#include "common/tensor/param_layout.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/limits.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

absl::Status CheckName(const std::string& what, const std::string& name) {
  if (name.empty() || name.size() > limits::kNameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " has ", name.size(), " bytes, allowed are 1 to ", limits::kNameBytesMax));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> CountParams(const TensorSpec& tensor) {
  if (tensor.shape_size() > limits::kTensorRankMax) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name(), " has ", tensor.shape_size(),
                                                   " dimensions, allowed are ", limits::kTensorRankMax));
  }
  uint64_t size = 1;
  for (const uint64_t dimension : tensor.shape()) {
    if (dimension == 0 || dimension > limits::kParametersMax / size) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name(), " has shape [",
                                                     absl::StrJoin(tensor.shape(), ","),
                                                     "]: a dimension of 0 or too many parameters"));
    }
    size *= dimension;
  }
  return size;
}

constexpr const char* kTensorDtypes[] = {"F32", "F16", "BF16", "F64", "I64",
                                         "I32", "I16", "I8",   "U8",  "BOOL"};

const std::string& GroupOf(const TensorSpec& tensor) {
  static const auto& fallback = *new std::string("default");
  return tensor.group().empty() ? fallback : tensor.group();
}

absl::Status CheckDtype(const TensorSpec& tensor) {
  for (const char* known : kTensorDtypes) {
    if (tensor.dtype().empty() || tensor.dtype() == known) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name(), " has dtype ", tensor.dtype(),
                                                 ", known are ", absl::StrJoin(kTensorDtypes, ", ")));
}

// `names` has all tensors', and gets the aliases'.
absl::Status CheckAliases(const ModelSpec& model, std::set<std::string>* names) {
  if (model.aliases_size() > limits::kTensorsMax) {
    return absl::InvalidArgumentError(absl::StrCat("model ", model.name(), " has ", model.aliases_size(),
                                                   " aliases, allowed are ", limits::kTensorsMax));
  }
  const std::set<std::string> tensors = *names;
  for (const AliasEntry& alias : model.aliases()) {
    RECON_RETURN_IF_ERROR(CheckName("the name of an alias", alias.name()));
    if (tensors.count(alias.tensor()) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("alias ", alias.name(), " stands for ", alias.tensor(), ", which is no tensor"));
    }
    if (!names->insert(alias.name()).second) {
      return absl::InvalidArgumentError(absl::StrCat("alias ", alias.name(), " is a name in use"));
    }
  }
  return absl::OkStatus();
}

void AppendShards(uint32_t group, uint64_t begin, uint64_t end, std::vector<ShardPlacement>* shards) {
  for (uint64_t at = begin; at < end; at += kShardParamsMax) {
    ShardPlacement shard;
    shard.group = group;
    shard.offset = at;
    shard.size = static_cast<uint32_t>(std::min<uint64_t>(kShardParamsMax, end - at));
    shards->push_back(shard);
  }
}

}  // namespace

absl::StatusOr<ParamLayout> ParamLayout::Create(const ModelSpec& model) {
  RECON_RETURN_IF_ERROR(CheckName("the model's name", model.name()));
  if (model.tensors_size() == 0 || model.tensors_size() > limits::kTensorsMax) {
    return absl::InvalidArgumentError(absl::StrCat("model ", model.name(), " has ", model.tensors_size(),
                                                   " tensors, allowed are 1 to ", limits::kTensorsMax));
  }
  ParamLayout layout;
  layout.model_ = model;
  std::set<std::string> names;
  for (const TensorSpec& tensor : model.tensors()) {
    RECON_RETURN_IF_ERROR(CheckName(absl::StrCat("the name of tensor ", names.size()), tensor.name()));
    if (!names.insert(tensor.name()).second) {
      return absl::InvalidArgumentError(absl::StrCat("two tensors are named ", tensor.name()));
    }
    RECON_RETURN_IF_ERROR(CheckName(absl::StrCat("the group of tensor ", tensor.name()), GroupOf(tensor)));
    TensorPlacement placement;
    placement.name = tensor.name();
    placement.shape.assign(tensor.shape().begin(), tensor.shape().end());
    RECON_ASSIGN_OR_RETURN(placement.size, CountParams(tensor));
    RECON_RETURN_IF_ERROR(CheckDtype(tensor));
    const auto group = std::find(layout.groups_.begin(), layout.groups_.end(), GroupOf(tensor));
    placement.group = static_cast<uint32_t>(group - layout.groups_.begin());
    if (group == layout.groups_.end()) {
      layout.groups_.push_back(GroupOf(tensor));
      layout.averaged_.push_back(tensor.averaged());
    } else if (layout.averaged_[placement.group] != tensor.averaged()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", tensor.name(), " of group ", GroupOf(tensor), " is ", tensor.averaged() ? "" : "not ",
          "averaged, others of the group are ", tensor.averaged() ? "not" : "averaged"));
    }
    layout.tensors_.push_back(std::move(placement));
  }
  RECON_RETURN_IF_ERROR(CheckAliases(model, &names));
  for (uint32_t group = 0; group < layout.groups_.size(); ++group) {
    const uint64_t begin = layout.params_;
    for (TensorPlacement& tensor : layout.tensors_) {
      if (tensor.group != group) continue;
      tensor.offset = layout.params_;
      layout.params_ += tensor.size;
      if (layout.params_ > limits::kParametersMax) {
        return absl::InvalidArgumentError(
            absl::StrCat("model ", model.name(), " has more than ", limits::kParametersMax, " parameters"));
      }
    }
    AppendShards(group, begin, layout.params_, &layout.shards_);
  }
  // Everybody finds a shard's values by this: the last shard ends where the parameters do.
  RECON_CHECK(!layout.shards_.empty());
  RECON_CHECK_EQ(layout.shards_.back().offset + layout.shards_.back().size, layout.params_);
  RECON_CHECK_EQ(layout.groups_.size(), layout.averaged_.size());
  return layout;
}

std::string ModelDifference(const ModelSpec& a, const ModelSpec& b) {
  if (a.name() != b.name()) return absl::StrCat("model ", b.name(), " instead of ", a.name());
  for (int i = 0; i < std::min(a.tensors_size(), b.tensors_size()); ++i) {
    const TensorSpec& x = a.tensors(i);
    const TensorSpec& y = b.tensors(i);
    if (x.name() != y.name()) {
      return absl::StrCat("tensor ", i, " is ", y.name(), " instead of ", x.name());
    }
    if (!std::equal(x.shape().begin(), x.shape().end(), y.shape().begin(), y.shape().end())) {
      return absl::StrCat("tensor ", x.name(), " has shape [", absl::StrJoin(y.shape(), ","),
                          "] instead of [", absl::StrJoin(x.shape(), ","), "]");
    }
    if (GroupOf(x) != GroupOf(y)) {
      return absl::StrCat("tensor ", x.name(), " is in group ", GroupOf(y), " instead of ", GroupOf(x));
    }
    if (x.averaged() != y.averaged()) {
      return absl::StrCat("tensor ", x.name(), " is ", y.averaged() ? "averaged" : "trained", " instead of ",
                          x.averaged() ? "averaged" : "trained");
    }
  }
  if (a.tensors_size() != b.tensors_size()) {
    return absl::StrCat(b.tensors_size(), " tensors instead of ", a.tensors_size());
  }
  return "";
}

}  // namespace recon
