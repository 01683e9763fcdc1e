#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace recon {

// `text`, or as much of its begin as fits into `bytes_max` (8 at least), with "..." behind it. A character of
// UTF-8 is never cut: what was valid stays valid.
inline std::string ClippedText(absl::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return std::string(text);
  size_t end = bytes_max - 3;
  const auto continues = [&](size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
  for (int i = 0; i < 3 && end > 0 && continues(end); ++i) --end;
  return absl::StrCat(text.substr(0, end), "...");
}

}  // namespace recon
