#include "common/base/human_bytes.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace recon {

std::string HumanBytes(uint64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (value >= 1e9) return absl::StrFormat("%.2f GB", value / 1e9);
  if (value >= 1e6) return absl::StrFormat("%.1f MB", value / 1e6);
  if (value >= 1e3) return absl::StrFormat("%.1f kB", value / 1e3);
  return absl::StrCat(bytes, " B");
}

}  // namespace recon
