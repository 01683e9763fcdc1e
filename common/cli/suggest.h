#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace recon {

// For words that nobody knows: which of those that exist was meant. Pure functions.

// How many letters have to be inserted, left out, replaced or swapped with their neighbour to make `b` of `a`
// (the optimal string alignment distance). Looks at the first 64 bytes of each.
int EditDistance(absl::string_view a, absl::string_view b);

// The one of `known` that is nearest to `word`, the first of several; empty if none is near, which is when a
// third of the letters differ. A word that begins exactly one of them stands for it.
std::string Nearest(absl::string_view word, const std::vector<std::string>& known);

// ": did you mean --batch?", or nothing if none is near.
std::string DidYouMean(absl::string_view word, const std::vector<std::string>& known);

}  // namespace recon
