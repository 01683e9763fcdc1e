#include "tools/reconctl/render.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/base/plain_text.h"

namespace recon {

std::string Table(std::vector<std::vector<std::string>> rows) {
  std::vector<size_t> widths;
  for (auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::string& cell : row) cell = EscapeControls(cell);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      absl::StrAppend(&text, row[i], std::string(last ? 0 : widths[i] - row[i].size() + 2, ' '));
    }
    text += "\n";
  }
  return text;
}

std::string HumanCount(double count) {
  if (count >= 1e9) return absl::StrFormat("%.2fG", count / 1e9);
  if (count >= 1e6) return absl::StrFormat("%.2fM", count / 1e6);
  if (count >= 1e4) return absl::StrFormat("%.1fk", count / 1e3);
  return absl::StrFormat("%.0f", count);
}

std::string HumanTime(int64_t unix_ms) {
  if (unix_ms == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), absl::LocalTimeZone());
}

std::string HumanSeconds(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds < 90) return absl::StrFormat("%.0f s", seconds);
  if (seconds < 5400) return absl::StrFormat("%.0f min", seconds / 60);
  return absl::StrFormat("%.1f h", seconds / 3600);
}

std::string Bar(double fraction, int width) {
  const int full = static_cast<int>(std::clamp(fraction, 0.0, 1.0) * width);
  std::string bar(static_cast<size_t>(full), '=');
  if (full < width) bar += '>';
  bar.resize(static_cast<size_t>(width), ' ');
  return absl::StrCat("[", bar, "]");
}

}  // namespace recon
