#include "common/base/utf8.h"

#include <random>

#include "catch2/catch.hpp"
#include "google/protobuf/stubs/logging.h"
#include "proto/collective.pb.h"

namespace recon {
namespace {

std::string Encoded(uint32_t point) {
  const auto byte = [](uint32_t value) { return static_cast<char>(value); };
  if (point < 0x80) return {byte(point)};
  if (point < 0x800) return {byte(0xc0 | point >> 6), byte(0x80 | (point & 0x3f))};
  if (point < 0x10000) {
    return {byte(0xe0 | point >> 12), byte(0x80 | (point >> 6 & 0x3f)), byte(0x80 | (point & 0x3f))};
  }
  return {byte(0xf0 | point >> 18), byte(0x80 | (point >> 12 & 0x3f)), byte(0x80 | (point >> 6 & 0x3f)),
          byte(0x80 | (point & 0x3f))};
}

// As protobuf reads it.
bool CanBeRead(const std::string& text) {
  // A SetMember whose name it is.
  const std::string message = "\x12" + std::string(1, static_cast<char>(text.size())) + text;
  return SetMember().ParseFromString(message);
}

}  // namespace

TEST_CASE("characters of UTF-8 stay, and bytes that are none become question marks", "[utf8]") {
  for (uint32_t point = 0; point < 0x112000; ++point) {
    const bool is_character = point < 0xd800 || (point > 0xdfff && point < 0x110000);
    const std::string text = "a" + Encoded(point) + "b";
    if ((ValidUtf8(text) == text) != is_character) FAIL("code point " << point);
  }
  CHECK(ValidUtf8("") == "");
  CHECK(ValidUtf8("\xc3") == "?");
  CHECK(ValidUtf8("\xc0\x80") == "??");         // A longer form of a shorter one.
  CHECK(ValidUtf8("\xe2\x82 \xff") == "?? ?");  // Cut.
}

TEST_CASE("what is made UTF-8 protobuf reads, and what it reads stays", "[utf8]") {
  const google::protobuf::LogSilencer quiet;  // It has a line for each that it does not read.
  std::mt19937 random(1);
  static constexpr unsigned char kBytes[] = {'a',  0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc1, 0xc2,
                                             0xdf, 0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf3, 0xf4, 0xf5, 0xff};
  int readable = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string text;
    for (uint32_t size = random() % 6; size > 0; --size) text += static_cast<char>(kBytes[random() % 20]);
    const std::string valid = ValidUtf8(text);
    REQUIRE(valid.size() == text.size());
    REQUIRE(CanBeRead(valid));
    const bool can_be_read = CanBeRead(text);
    REQUIRE(can_be_read == (valid == text));
    readable += can_be_read ? 1 : 0;
  }
  CHECK(readable > 10'000);
}

}  // namespace recon
