#include "common/base/control_group.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace recon {

void VisitControlGroups(const std::string& root, const std::string& controller, const std::string& v2_file,
                        const std::string& v1_file,
                        const std::function<void(const std::string& path)>& visit) {
  // In a container its own group is often mounted as the root, and the path that the kernel says leads
  // nowhere.
  const auto visit_all = [&](const std::string& mount, absl::string_view group, const std::string& file) {
    while (true) {
      visit(absl::StrCat(mount, group, "/", file));
      if (group.empty()) return;
      group = group.substr(0, group.rfind('/'));
    }
  };
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // Number, controllers (version 2: none), path.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || fields[2].empty() || fields[2][0] != '/') continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    if (fields[1].empty()) {
      visit_all(root + "/sys/fs/cgroup", fields[2], v2_file);
    } else if (std::find(controllers.begin(), controllers.end(), controller) != controllers.end()) {
      visit_all(absl::StrCat(root, "/sys/fs/cgroup/", controller), fields[2], v1_file);
    }
  }
}

}  // namespace recon
