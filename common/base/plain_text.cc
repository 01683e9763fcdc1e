#include "common/base/plain_text.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/utf8.h"

namespace recon {
namespace {

struct Range {
  uint32_t first, last;
};

// By their numbers.
constexpr Range kNotPlain[] = {
    {0x0000, 0x001f},    // Controls.
    {0x007f, 0x009f},    // Delete, and controls again.
    {0x00ad, 0x00ad},    // A hyphen that mostly does not show.
    {0x061c, 0x061c},    // A mark of direction.
    {0x180e, 0x180e},    // No width.
    {0x200b, 0x200f},    // No width, and marks of direction.
    {0x2028, 0x202e},    // Ends of lines and paragraphs, and changes of direction.
    {0x2060, 0x206f},    // No width, and changes of direction.
    {0xfeff, 0xfeff},    // A mark of the bytes' order.
    {0xfff9, 0xfffb},    // Notes between lines.
    {0xe0000, 0xe007f},  // Letters that do not show.
};

bool IsPlain(const Utf8Character& character) {
  if (character.code_point >= 0x20 && character.code_point < 0x7f) return true;  // Most are.
  if (character.bytes == 0) return false;
  const auto* const range = std::find_if(std::begin(kNotPlain), std::end(kNotPlain),
                                         [&](const Range& one) { return character.code_point <= one.last; });
  return range == std::end(kNotPlain) || character.code_point < range->first;
}

// The escape for `character`, which is not plain and which `text` begins with.
std::string Escaped(absl::string_view text, const Utf8Character& character) {
  if (text[0] == '\n') return "\\n";
  if (text[0] == '\t') return "\\t";
  if (character.bytes <= 1) return absl::StrFormat("\\x%02x", static_cast<unsigned char>(text[0]));
  if (character.code_point > 0xffff) return absl::StrFormat("\\U%08x", character.code_point);
  return absl::StrFormat("\\u%04x", character.code_point);
}

// JSON has escapes for halves of pairs only, beyond U+FFFF.
std::string EscapedInJson(const Utf8Character& character) {
  if (character.code_point <= 0xffff) return absl::StrFormat("\\u%04x", character.code_point);
  const uint32_t above = character.code_point - 0x10000;
  return absl::StrFormat("\\u%04x\\u%04x", 0xd800 + (above >> 10), 0xdc00 + (above & 0x3ff));
}

template <typename Escape>
std::string EscapeAll(absl::string_view text, Escape escape) {
  std::string escaped;
  escaped.reserve(text.size());
  while (!text.empty()) {
    const Utf8Character character = FirstCharacter(text);
    const size_t bytes = std::max<size_t>(1, character.bytes);
    if (IsPlain(character)) {
      escaped.append(text.data(), bytes);
    } else {
      escaped += escape(text, character);
    }
    text.remove_prefix(bytes);
  }
  return escaped;
}

}  // namespace

std::string EscapeControls(absl::string_view text) { return EscapeAll(text, Escaped); }

std::string EscapeLines(absl::string_view text) {
  return EscapeAll(text, [](absl::string_view rest, const Utf8Character& character) {
    return rest[0] == '\n' ? std::string("\n") : Escaped(rest, character);
  });
}

absl::Status CheckPlain(absl::string_view what, absl::string_view name) {
  for (absl::string_view rest = name; !rest.empty();) {
    const Utf8Character character = FirstCharacter(rest);
    if (!IsPlain(character)) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " \"", EscapeControls(name), "\" has ", Escaped(rest, character), " as byte ",
                       name.size() - rest.size() + 1,
                       ": use characters of UTF-8 that show as themselves, no controls, marks of direction "
                       "or spaces without width"));
    }
    rest.remove_prefix(character.bytes);
  }
  return absl::OkStatus();
}

std::string EscapeInJson(absl::string_view json) {
  return EscapeAll(json, [](absl::string_view text, const Utf8Character& character) {
    // The text's own lines and what is no character stay for who reads it to judge.
    if (character.bytes == 0 || text[0] == '\n' || text[0] == '\t') return std::string(text.substr(0, 1));
    return EscapedInJson(character);
  });
}

}  // namespace recon
