#include "server/process/flag_warnings.h"

#include "absl/strings/match.h"
#include "catch2/catch.hpp"

namespace recon {
namespace {

std::vector<std::string> WarningsOf(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"recon-server", "--data", "/nowhere"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  int exit_code = 0;
  const auto flags = ParseServerFlags(static_cast<int>(argv.size()), argv.data(), &exit_code);
  REQUIRE(flags.ok());
  return FlagWarnings(*flags);
}

// That flags are warned of once, by a text with these words.
void Warned(const std::vector<std::string>& arguments, const std::vector<std::string>& words) {
  const std::vector<std::string> texts = WarningsOf(arguments);
  CAPTURE(arguments, texts);
  REQUIRE(texts.size() == 1);
  CHECK(absl::StartsWith(texts[0], arguments[0]));
  for (const std::string& word : words) CHECK(absl::StrContains(texts[0], word));
}

}  // namespace

TEST_CASE("flags as they are, and sizes that are common, are not warned of", "[flags]") {
  CHECK(WarningsOf({}).empty());
  CHECK(WarningsOf({"--split-samples", "200", "--data-epochs", "1000", "--batch", "20"}).empty());
  CHECK(WarningsOf({"--data-epochs", "20000"}).empty());
  CHECK(WarningsOf({"--schedule", "cosine:1000", "--warmup-updates", "100"}).empty());
}

TEST_CASE("splits of which the completions hold the job up are warned of, with the rate", "[flags]") {
  Warned({"--split-samples", "1", "--batch", "1", "--data-epochs", "1"}, {"60 training samples/s"});
  Warned({"--split-samples", "32", "--batch", "32"}, {"1920 training samples/s"});
  Warned({"--eval-split-samples", "1"}, {"60 test samples/s"});
}

TEST_CASE("more passes than splits allow for common data are warned of, with what helps", "[flags]") {
  Warned({"--data-epochs", "100000"},
         {"more than 200000 training samples", "--split-samples 10000 is enough"});
  CHECK(WarningsOf({"--data-epochs", "100000", "--split-samples", "10000"}).empty());
}

TEST_CASE("times that undo each other are warned of", "[flags]") {
  Warned({"--suspect-after", "5s"}, {"--evict-after 3s"});
  Warned({"--replace-after", "1s", "--servers", "2"}, {"--evict-after 3s"});
  Warned({"--warmup-updates", "200", "--schedule", "cosine:100"}, {"100 updates of the cosine"});
}

}  // namespace recon
