#include "tools/bench/shell.h"

#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace recon {

std::string Quoted(const std::string& word) {
  return absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

absl::StatusOr<std::string> OutputOf(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return absl::InternalError(absl::StrCat("'", command, "' cannot be started"));
  std::string out;
  char piece[256];
  for (size_t got; (got = fread(piece, 1, sizeof(piece), pipe)) > 0;) out.append(piece, got);
  if (pclose(pipe) != 0) return absl::InternalError(absl::StrCat("'", command, "' failed"));
  return out;
}

absl::StatusOr<double> ParseSeconds(const std::string& line) {
  double seconds = 0;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(line), &seconds)) {
    return absl::InternalError(absl::StrCat("no number: ", line));
  }
  return seconds;
}

}  // namespace recon
