#include "common/base/utf8.h"

namespace recon {

Utf8Character FirstCharacter(absl::string_view text) {
  const auto at = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = at(0);
  if (first < 0x80) return {1, first};
  const size_t bytes = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  if (bytes == 0 || text.size() < bytes) return {};
  // No longer form of a shorter one, no half of a surrogate pair, nothing beyond U+10FFFF.
  const uint8_t low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const uint8_t high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (at(1) < low || at(1) > high) return {};
  uint32_t code_point = first & (0x7fU >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return {};
    code_point = code_point << 6 | (at(i) & 0x3fU);
  }
  return {bytes, code_point};
}

std::string ValidUtf8(absl::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = FirstCharacter(text).bytes;
    if (bytes == 0) valid.push_back('?');
    valid.append(text.data(), bytes);
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return valid;
}

}  // namespace recon
