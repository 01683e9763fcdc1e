#include "common/snapshot/tensor_match.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/snapshot/float_values.h"
#include "common/snapshot/safetensors.h"

namespace recon {

bool IsCarried(const OfferedTensor& tensor) {
  const bool no_values = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  return tensor.shape.empty() || no_values || !ConvertsToFloat(tensor.dtype);
}

TensorMatch MatchTensors(const ModelSpec& model, const std::vector<OfferedTensor>& offered,
                         const TensorAliases& aliases) {
  std::map<std::string, size_t> by_name;
  for (size_t i = 0; i < offered.size(); ++i) by_name[offered[i].name] = i;
  const auto find = [&](const std::string& name) -> std::optional<size_t> {
    auto found = by_name.find(name);
    const auto alias = aliases.find(name);
    if (found == by_name.end() && alias != aliases.end()) found = by_name.find(alias->second);
    if (found == by_name.end()) return std::nullopt;
    return found->second;
  };
  TensorMatch match;
  std::vector<bool> taken(offered.size());
  for (const TensorSpec& wanted : model.tensors()) {
    const std::string name = ShownName(wanted.name());
    const std::vector<uint64_t> shape(wanted.shape().begin(), wanted.shape().end());
    const std::optional<size_t> found = find(wanted.name());
    match.source.push_back(found.value_or(0));
    if (!found) {
      match.differences.push_back(absl::StrCat("missing: ", name, " ", ShapeText(shape)));
      continue;
    }
    const OfferedTensor& tensor = offered[*found];
    taken[*found] = true;
    if (!ConvertsToFloat(tensor.dtype)) {
      match.differences.push_back(absl::StrCat("another type: ", name, " is ", tensor.dtype,
                                               ", expected F32 ", "or what is converted to it"));
    } else if (tensor.shape != shape) {
      match.differences.push_back(absl::StrCat("another shape: ", name, " is ", ShapeText(tensor.shape),
                                               ", expected ", ShapeText(shape)));
    }
  }
  for (size_t i = 0; i < offered.size(); ++i) {
    if (taken[i]) continue;
    const OfferedTensor& tensor = offered[i];
    match.rest.push_back(i);
    if (tensor.may_stay || aliases.count(tensor.name) > 0) continue;
    match.differences.push_back(
        absl::StrCat("left over: ", ShownName(tensor.name), " ", tensor.dtype, " ", ShapeText(tensor.shape)));
  }
  return match;
}

bool ModelsHaveSameTensors(const ModelSpec& a, const ModelSpec& b) {
  std::vector<OfferedTensor> offered;
  for (const TensorSpec& tensor : b.tensors()) {
    offered.push_back({tensor.name(), "F32", {tensor.shape().begin(), tensor.shape().end()}});
  }
  return a.tensors_size() == b.tensors_size() && MatchTensors(a, offered, {}).differences.empty();
}

std::string JoinDifferences(const std::vector<std::string>& differences, absl::string_view separator,
                            size_t bytes_max) {
  std::string text;
  for (size_t i = 0; i < differences.size(); ++i) {
    if (i > 0) absl::StrAppend(&text, separator);
    if (text.size() + differences[i].size() > bytes_max) {
      return absl::StrCat(text, "and ", differences.size() - i, " more");
    }
    absl::StrAppend(&text, differences[i]);
  }
  return text;
}

}  // namespace recon
