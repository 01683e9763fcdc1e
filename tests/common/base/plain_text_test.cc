#include "common/base/plain_text.h"

#include <memory>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"
#include "catch2/catch.hpp"
#include "common/base/log.h"
#include "common/base/utf8.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"

namespace recon {
namespace {

// A text that is not plain, and how it is shown.
const std::vector<std::pair<std::string, std::string>>& Examples() {
  static const auto* const kExamples = new std::vector<std::pair<std::string, std::string>>{
      {"\x1b[31m", "\\x1b[31m"},
      {"a\nb\tc\r", "a\\nb\\tc\\x0d"},
      {std::string("\0", 1), "\\x00"},
      {"\x7f", "\\x7f"},
      {"\xff\xfe", "\\xff\\xfe"},  // No UTF-8.
      {"caf\xe9", "caf\\xe9"},     // Latin-1.
      {"\xc2\x9b"
       "31m",
       "\\u009b31m"},  // C1's ESC [.
      {"\xe2\x80\xae"
       "exe.w0",
       "\\u202eexe.w0"},  // From right to left.
      {"\xe2\x81\xa6", "\\u2066"},
      {"w\xe2\x80\x8b"
       "0",
       "w\\u200b0"},  // No width.
      {"\xe2\x80\xa8\xe2\x80\xa9", "\\u2028\\u2029"},
      {"\xef\xbb\xbf", "\\ufeff"},
      {"\xf3\xa0\x81\x81", "\\U000e0041"},
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},  // Half of a pair.
  };
  return *kExamples;
}

}  // namespace

TEST_CASE("what does not show as itself is escaped, once", "[plain_text]") {
  for (const auto& [text, shown] : Examples()) {
    CHECK(EscapeControls(text) == shown);
    CHECK(EscapeControls(shown) == shown);
    CHECK(EscapeLines(text + "\n" + text) ==
          absl::StrReplaceAll(shown, {{"\\n", "\n"}}) + "\n" + absl::StrReplaceAll(shown, {{"\\n", "\n"}}));
    CHECK(EscapeControls("before " + text + " after") == "before " + shown + " after");
  }
}

TEST_CASE("letters of every language stay as they are", "[plain_text]") {
  for (const std::string text : {"", "w0", "gpu-1.rack_2:7", "\xc3\xa9t\xc3\xa9", "\xe6\xbc\xa2\xe5\xad\x97",
                                 "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d", "\xf0\x9f\x9a\x80", "\xc2\xa0"}) {
    CHECK(EscapeControls(text) == text);
    CHECK(CheckPlain("name", text) == absl::OkStatus());
  }
}

TEST_CASE("a name that is not plain is refused with what it has and where", "[plain_text]") {
  const absl::Status refused = CheckPlain("worker name",
                                          "w\xe2\x80\xae"
                                          "0");
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(absl::StartsWith(refused.message(), "worker name \"w\\u202e0\" has \\u202e as byte 2: "));
  for (const auto& [text, shown] : Examples()) CHECK(absl::IsInvalidArgument(CheckPlain("name", text)));
}

TEST_CASE("escapes in JSON mean the same characters, and show", "[plain_text]") {
  CHECK(EscapeInJson("{\"a\":\"\xe2\x80\xae\xc2\x9b\x7f\xc3\xa9\"}\n") ==
        "{\"a\":\"\\u202e\\u009b\\u007f\xc3\xa9\"}\n");
  CHECK(EscapeInJson("\"\xf3\xa0\x81\x81\"") == "\"\\udb40\\udc41\"");
}

TEST_CASE("a line of the log is UTF-8 without controls, whatever it is given", "[plain_text]") {
  std::ostringstream lines;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines)));
  spdlog::default_logger()->set_pattern("%v");
  for (const auto& [text, shown] : Examples()) LogInfo("worker {} joins", text);
  LogInfo("worker {} joins", "\xc3\xa9");
  spdlog::set_default_logger(before);
  std::string expected;
  for (const auto& [text, shown] : Examples()) expected += "worker " + shown + " joins\n";
  CHECK(lines.str() == expected + "worker \xc3\xa9 joins\n");
  CHECK(ValidUtf8(lines.str()) == lines.str());
}

}  // namespace recon
