#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace recon {

// One setting of a --config file: `values` has one value, or those of an array, as text without quotes.
struct TomlSetting {
  std::string name;
  std::vector<std::string> values;
  int line = 0;  // Counted from 1.
};

// The part of TOML that flags need: NAME = VALUE, where VALUE is a string in quotes, a number, true, false,
// or an array of those, which may have several lines; comments. Settings in their order. InvalidArgument,
// whose text begins with the number of the line ("3: ..."), for all else: tables, dates, strings of several
// lines, text without quotes, a name that was there before. Pure.
absl::StatusOr<std::vector<TomlSetting>> ParseToml(absl::string_view text);

}  // namespace recon
