#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace recon {

// Texts that came from another process, or from its files, are shown to people: in logs, on terminals, on
// pages. A text is plain if it is UTF-8 and each of its characters shows as itself. Not plain are controls
// (U+0000 to U+001F, U+007F to U+009F), what turns the direction of writing, what has no width, and what ends
// a line. Names are refused where they enter unless they are plain; other texts are escaped where they are
// shown.
//
// All functions are pure.

// `text` with everything escaped that is not plain: \n and \t; \x1b for another control below U+0080, and for
// a byte that is no part of a character; \u202e or \U000e0041 for another character. A text that has been
// escaped stays as it is.
std::string EscapeControls(absl::string_view text);

// Escapes each line of `text` as EscapeControls() does. The ends of its lines stay.
std::string EscapeLines(absl::string_view text);

// InvalidArgument, which begins with `what` and says which character it is and where, unless `name` is plain.
absl::Status CheckPlain(absl::string_view what, absl::string_view name);

// `json`, which is UTF-8, with \u202e and the like in place of characters that are not plain: its values stay
// what they are.
std::string EscapeInJson(absl::string_view json);

}  // namespace recon
