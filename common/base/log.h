#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "spdlog/spdlog.h"

#if !defined(ABSL_USES_STD_STRING_VIEW)
// Where Abseil has a string_view of its own, fmt does not know it.
template <>
struct fmt::formatter<absl::string_view> : fmt::formatter<fmt::string_view> {
  auto format(absl::string_view text, fmt::format_context& context) const {
    return fmt::formatter<fmt::string_view>::format({text.data(), text.size()}, context);
  }
};
#endif

namespace recon {

// Log lines go to standard error: time, level, text. One line per change of state; metrics carry the
// rest. Thread-safe.
//
// `level` is one of debug, info, warn, error. Returns false for any other word.
bool InitLog(absl::string_view level);

}  // namespace recon
