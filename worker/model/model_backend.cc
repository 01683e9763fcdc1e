#include "worker/model/model_backend.h"

#include <fnmatch.h>

#include "absl/strings/str_cat.h"

namespace recon {

absl::Status AssignGroups(const std::vector<std::pair<std::string, std::string>>& rules, ModelSpec* model) {
  std::vector<bool> used(rules.size());
  for (auto& tensor : *model->mutable_tensors()) {
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const auto& candidate) {
      return fnmatch(candidate.first.c_str(), tensor.name().c_str(), 0) == 0;
    });
    if (rule == rules.end()) continue;
    tensor.set_group(rule->second);
    used[static_cast<size_t>(rule - rules.begin())] = true;
  }
  for (size_t i = 0; i < rules.size(); ++i) {
    if (used[i]) continue;
    return absl::InvalidArgumentError(absl::StrCat("--tensor-group ", rules[i].first, "=", rules[i].second,
                                                   ": no tensor of ", model->name(),
                                                   " is left for it; they are ", model->tensors(0).name(),
                                                   " to ", model->tensors(model->tensors_size() - 1).name()));
  }
  return absl::OkStatus();
}

}  // namespace recon
