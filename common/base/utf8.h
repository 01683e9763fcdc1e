#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace recon {

// A character of UTF-8 (Unicode 15, table 3-7): how many bytes it has, and its number.
struct Utf8Character {
  size_t bytes = 0;
  uint32_t code_point = 0;
};

// The character that `text`, which is not empty, begins with; its `bytes` are 0 if that is none. Pure.
Utf8Character FirstCharacter(absl::string_view text);

// `text` with a '?' in place of each byte that is no part of a character in UTF-8: a protobuf message whose
// texts are not all UTF-8 can be written and not be read.
// Pure.
std::string ValidUtf8(absl::string_view text);

}  // namespace recon
