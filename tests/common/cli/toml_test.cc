#include "common/cli/toml.h"
#include "catch2/catch.hpp"

namespace recon {
namespace {

std::string ErrorOf(const std::string& text) {
  const auto settings = ParseToml(text);
  INFO(text);
  REQUIRE(absl::IsInvalidArgument(settings.status()));
  return std::string(settings.status().message());
}

}  // namespace

TEST_CASE("settings keep their values, as text, and their lines", "[cli]") {
  const auto settings = ParseToml(
      "# a job\r\n\n"
      "batch = 64 # samples\n"
      "  learning-rate=1e-3\n"
      "seed = 1_000\n"
      "insecure = true\n"
      "sync = \"ssp:4\"\n"
      "data = 'C:\\new # not a comment'\n"
      "\"name\" = \"a \\\"b\\\" \\\\ \\t\"\n"
      "sync-period = [\"a=2\", # first\n  'b=3',\n]\n"
      "last = 3");
  REQUIRE(settings.ok());
  REQUIRE(settings->size() == 9);
  const auto is = [&](size_t i, const std::string& name, const std::vector<std::string>& values, int line) {
    CHECK(settings->at(i).name == name);
    CHECK(settings->at(i).values == values);
    CHECK(settings->at(i).line == line);
  };
  is(0, "batch", {"64"}, 3);
  is(1, "learning-rate", {"1e-3"}, 4);
  is(2, "seed", {"1000"}, 5);
  is(3, "insecure", {"true"}, 6);
  is(4, "sync", {"ssp:4"}, 7);
  is(5, "data", {"C:\\new # not a comment"}, 8);
  is(6, "name", {"a \"b\" \\ \t"}, 9);
  is(7, "sync-period", {"a=2", "b=3"}, 10);
  is(8, "last", {"3"}, 13);
  CHECK(ParseToml("")->empty());
  CHECK(ParseToml("# nothing")->empty());
}

TEST_CASE("what is no setting is named with its line", "[cli]") {
  CHECK(ErrorOf("a = 1\nsync = asp\n") ==
        "2: sync = asp: expected a number, true or false; text has quotes: \"asp\"");
  CHECK(ErrorOf("a = 1\n\na = 2\n") == "3: a has been given before, in line 1");
  CHECK(ErrorOf("\n[server]\n") == "2: a table: flags have no tables, their names stand alone");
  CHECK(ErrorOf("batch 3") == "1: expected = after batch");
  CHECK(ErrorOf("batch =\nseed = 1") == "1: batch has no value");
  CHECK(ErrorOf("= 3") == "1: expected NAME = VALUE");
  CHECK(ErrorOf("a = \"x\nb = \"y\"") == "1: a string without its closing quote");
  CHECK(ErrorOf("a = \"x") == "1: a string without its closing quote");
  CHECK(ErrorOf("a = \"x\" y") == "1: after the value of a there is more: y");
  CHECK(ErrorOf("a = [1, 2") == "1: a: an array without its closing bracket");
  CHECK(ErrorOf("a = [1 2]") == "1: a = 1 2: expected a number, true or false; text has quotes: \"1 2\"");
  CHECK(ErrorOf("a = []") == "1: a: the array is empty");
  CHECK(ErrorOf("a = {b = 1}") == "1: a: expected a string, a number, true, false or an array of those");
  CHECK(ErrorOf("a = \"\\u0041\"") == "1: expected \\\", \\\\, \\n or \\t");
  CHECK(ErrorOf("a = \"\"\"x\"\"\"") == "1: a string of several lines: expected one line");
}

TEST_CASE("every truncation of a file of settings is read or refused", "[cli]") {
  const std::string text = "a = [1, \"b\", # c\n true]\n\"d\" = 'e'\nf = \"\\\\\"\n";
  int read = 0;
  for (size_t size = 0; size <= text.size(); ++size) read += ParseToml(text.substr(0, size)).ok() ? 1 : 0;
  CHECK(read > 3);
  CHECK(read < static_cast<int>(text.size()));
}

}  // namespace recon
