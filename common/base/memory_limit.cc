#include "common/base/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace recon {
namespace {

// UINT64_MAX if there is none: version 2 says "max", version 1 a number beyond all memory.
uint64_t LimitIn(const std::string& file) {
  std::string text;
  uint64_t limit = 0;
  return std::ifstream(file) >> text && absl::SimpleAtoi(text, &limit) ? limit : UINT64_MAX;
}

// Of the group and all above it. In a container its own is often mounted as the root, and the path that the
// kernel says leads nowhere.
uint64_t LimitOf(const std::string& mount, absl::string_view group, absl::string_view file) {
  uint64_t limit = UINT64_MAX;
  while (true) {
    limit = std::min(limit, LimitIn(absl::StrCat(mount, group, "/", file)));
    if (group.empty()) return limit;
    group = group.substr(0, group.rfind('/'));
  }
}

}  // namespace

uint64_t MemoryLimit(const std::string& root) {
  uint64_t limit =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // Number, controllers (version 2: none), path.
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (fields.size() != 3 || fields[2].empty() || fields[2][0] != '/') continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(fields[1], ',');
    if (fields[1].empty()) {
      limit = std::min(limit, LimitOf(root + "/sys/fs/cgroup", fields[2], "memory.max"));
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      limit = std::min(limit, LimitOf(root + "/sys/fs/cgroup/memory", fields[2], "memory.limit_in_bytes"));
    }
  }
  return limit;
}

}  // namespace recon
