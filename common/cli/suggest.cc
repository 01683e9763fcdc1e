#include "common/cli/suggest.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace recon {
namespace {

// No name is longer; what is typed may be.
constexpr size_t kSuggestBytesMax = 64;
constexpr size_t kPrefixBytesMin = 3;

absl::string_view WithoutDashes(absl::string_view name) {
  return name.substr(std::min(name.find_first_not_of('-'), name.size()));
}

}  // namespace

int EditDistance(absl::string_view a, absl::string_view b) {
  a = a.substr(0, kSuggestBytesMax);
  b = b.substr(0, kSuggestBytesMax);
  // Three rows of the table: of the letters of `a` up to two before, one before, and this one.
  std::vector<int> two_before(b.size() + 1), before(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) before[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = before[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({before[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_before[j - 2] + 1);
      }
    }
    two_before.swap(before);
    before.swap(row);
  }
  return before[b.size()];
}

std::string Nearest(absl::string_view word, const std::vector<std::string>& known) {
  const absl::string_view typed = WithoutDashes(word);
  std::string begun;
  std::string nearest;
  int begun_count = 0;
  int least = std::max(1, static_cast<int>(typed.size()) / 3) + 1;
  for (const std::string& name : known) {
    const absl::string_view bare = WithoutDashes(name);
    if (typed.size() >= kPrefixBytesMin && absl::StartsWith(bare, typed)) {
      begun = name;
      ++begun_count;
    }
    const int distance = EditDistance(typed, bare);
    // A word of which every letter was replaced is another word.
    if (distance >= least || distance >= static_cast<int>(bare.size())) continue;
    least = distance;
    nearest = name;
  }
  return nearest.empty() && begun_count == 1 ? begun : nearest;
}

std::string DidYouMean(absl::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(word, known);
  return nearest.empty() ? "" : absl::StrCat(": did you mean ", nearest, "?");
}

}  // namespace recon
