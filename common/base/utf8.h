#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace recon {

// `text` with a '?' in place of each byte that is no part of a character in UTF-8 (Unicode 15, table 3-7): a
// protobuf message whose texts are not all UTF-8 can be written and not be read.
// Pure.
std::string ValidUtf8(absl::string_view text);

}  // namespace recon
