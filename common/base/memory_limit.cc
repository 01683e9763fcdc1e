#include "common/base/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/numbers.h"
#include "common/base/control_group.h"

namespace recon {

uint64_t MemoryLimit(const std::string& root) {
  uint64_t limit =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGE_SIZE));
  VisitControlGroups(root, "memory", "memory.max", "memory.limit_in_bytes", [&](const std::string& path) {
    // None: version 2 says "max", version 1 a number beyond all memory.
    std::string text;
    uint64_t bytes = 0;
    if (std::ifstream(path) >> text && absl::SimpleAtoi(text, &bytes)) limit = std::min(limit, bytes);
  });
  return limit;
}

}  // namespace recon
