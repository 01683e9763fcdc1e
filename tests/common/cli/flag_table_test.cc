#include "common/cli/flag_table.h"

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "catch2/catch.hpp"
#include "common/cli/command_line.h"

namespace recon {
namespace {

// What a program was told, and in which order its flags were taken.
struct Told {
  std::string name = "nobody";
  int depth = 2;
  bool quick = false;
  bool shared = true;
  std::vector<std::string> rules;
  int size = 0;
  std::vector<std::string> taken;
};

absl::Status TakeSize(const std::string& text, Told* told) {
  told->taken.push_back("--size");
  if (text == "small" || text == "large") {
    told->size = text == "small" ? 1 : 100;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--size ", text, ": expected small or large"));
}

FlagTable TableOf(Told* told) {
  const auto no_blank = [](const std::string& name) {
    return name.empty() ? absl::InvalidArgumentError("--name is empty") : absl::OkStatus();
  };
  return FlagTable({
      {"Who",
       {
           {"--name", {&told->name, no_blank}, "of the program"},
           {"--rule",
            FlagField::To<std::vector<std::string>>({},
                                                    [told](const std::vector<std::string>& rules) {
                                                      told->taken.push_back("--rule");
                                                      told->rules = rules;
                                                    }),
            "may be given more than once"},
       }},
      {"How",
       {
           {"--depth", &told->depth, "of the queue", CLI::Range(1, 64), "RECON_TEST_QUEUE_DEPTH"},
           {"--quick", &told->quick, "given or not"},
           {"--shared-part", FlagField::TrueOrFalse(&told->shared), "true or false"},
           {"--size",
            FlagField::To<std::string>("small",
                                       [told](const std::string& text) { return TakeSize(text, told); }),
            "small or large"},
       }},
  });
}

// The value of an environment variable, as long as this lives.
class Variable {
 public:
  Variable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), /*overwrite=*/1);
  }
  ~Variable() { unsetenv(name_.c_str()); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const std::string name_;
};

absl::StatusOr<Told> Parse(std::vector<std::string> arguments,
                           FlagTable::Environment environment = FlagTable::Environment::kRead) {
  Told told;
  const FlagTable table = TableOf(&told);
  CommandLine line("test", "a program");
  table.AddTo(line.app(), environment);
  arguments.insert(arguments.begin(), "test");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  absl::Status status = line.ParseQuietly(static_cast<int>(argv.size()), argv.data());
  if (status.ok()) status = table.Take();
  if (!status.ok()) return status;
  return told;
}

std::string Refused(std::vector<std::string> arguments) {
  const absl::Status status = Parse(std::move(arguments)).status();
  CHECK(absl::IsInvalidArgument(status));
  return std::string(status.message());
}

}  // namespace

TEST_CASE("a flag that is not given has its row's default", "[cli]") {
  const Told told = *Parse({});
  CHECK(told.name == "nobody");
  CHECK(told.depth == 2);
  CHECK_FALSE(told.quick);
  CHECK(told.shared);
  CHECK(told.rules.empty());
  CHECK(told.size == 1);
}

TEST_CASE("a flag's value goes to its field, or to who takes it", "[cli]") {
  const Told told = *Parse({"--name", "a", "--depth=7", "--size", "large"});
  CHECK(told.name == "a");
  CHECK(told.depth == 7);
  CHECK(told.size == 100);
}

TEST_CASE("a bool is given or not, unless its row wants a value", "[cli]") {
  CHECK(Parse({"--quick"})->quick);
  CHECK_FALSE(Parse({"--shared-part", "false"})->shared);
  CHECK(Parse({"--shared-part", "true"})->shared);
  CHECK(Refused({"--shared-part"}) == "--shared-part has no value");
  CHECK(Refused({"--shared-part", "perhaps"}) == "--shared-part perhaps: expected true or false");
}

TEST_CASE("a list takes a flag's values in their order, a single flag takes none twice", "[cli]") {
  CHECK(Parse({"--rule", "a", "--depth", "3", "--rule", "b"})->rules == std::vector<std::string>{"a", "b"});
  CHECK(absl::StrContains(Refused({"--depth", "3", "--depth", "4"}), "--depth"));
}

TEST_CASE("flags are taken in the order of the rows, whatever the line's", "[cli]") {
  CHECK(Parse({"--size", "large", "--rule", "a"})->taken == std::vector<std::string>{"--rule", "--size"});
  // The first row that refuses its value is the one that is named.
  CHECK(Refused({"--size", "huge", "--name", ""}) == "--name is empty");
}

TEST_CASE("what is wrong about a value begins with the flag's name", "[cli]") {
  CHECK(Refused({"--depth", "65"}) == "--depth 65: expected a number from 1 to 64");
  CHECK(Refused({"--depth", "many"}) == "--depth many: expected a number from 1 to 64");
  CHECK(Refused({"--size", "huge"}) == "--size huge: expected small or large");
  CHECK(Refused({"--name", ""}) == "--name is empty");
}

TEST_CASE("an unknown flag is named, with the one that was perhaps meant", "[cli]") {
  CHECK(Refused({"--dpeth", "3"}) == "unknown flag --dpeth: did you mean --depth?");
  CHECK(Refused({"--zzz", "3"}) == "unknown flag --zzz");
}

TEST_CASE("a variable's name is that of the flag, unless the row has another", "[cli]") {
  CHECK(EnvironmentName("--snapshot-dir") == "RECON_SNAPSHOT_DIR");
  const Variable part("RECON_SHARED_PART", "false");
  const Variable depth("RECON_TEST_QUEUE_DEPTH", "9");
  const Variable not_its("RECON_DEPTH", "11");
  const Told told = *Parse({});
  CHECK_FALSE(told.shared);
  CHECK(told.depth == 9);
  CHECK(Parse({"--depth", "5"})->depth == 5);  // The line comes first.
  CHECK(Parse({}, FlagTable::Environment::kIgnored)->depth == 2);
}

TEST_CASE("a bad value in the environment names the variable", "[cli]") {
  const Variable depth("RECON_TEST_QUEUE_DEPTH", "65");
  CHECK(Refused({}) == "RECON_TEST_QUEUE_DEPTH: --depth 65: expected a number from 1 to 64");
}

TEST_CASE("help has the rows below their headings, with default and variable", "[cli]") {
  Told told;
  const FlagTable table = TableOf(&told);
  CommandLine line("test", "a program");
  table.AddTo(line.app());
  const std::string help = line.app()->help();
  const auto before = [&help](const char* first, const char* second) {
    INFO(help);
    REQUIRE(absl::StrContains(help, first));
    REQUIRE(absl::StrContains(help, second));
    CHECK(help.find(first) < help.find(second));
  };
  before("\nWho:\n", "  --name TEXT");
  before("  --name TEXT", "of the program [default nobody] (RECON_NAME)");
  before("(RECON_NAME)", "  --rule TEXT");
  before("  --rule TEXT", "\nHow:\n");
  before("\nHow:\n", "  --depth N in [1 - 64]");
  before("  --depth N in [1 - 64]", "of the queue [default 2] (RECON_TEST_QUEUE_DEPTH)");
  before("--quick ", "given or not (RECON_QUICK)");
  before("--shared-part BOOLEAN", "true or false [default true] (RECON_SHARED_PART)");
  before("--size TEXT", "small or large [default small] (RECON_SIZE)");
}

TEST_CASE("a flag that must be given shows no default, and is missed", "[cli]") {
  std::string directory = "here";
  std::string rate = "0";
  const FlagTable table({{"All",
                          {
                              {"--directory", &directory, "of data", {}, "", Flag::Need::kMustBeGiven},
                              {"--rate", &rate, "as others say", {}, "", Flag::Need::kHasNoDefaultOfItsOwn},
                          }}});
  CommandLine line("test", "a program");
  table.AddTo(line.app(), FlagTable::Environment::kIgnored);
  const std::string help = line.app()->help();
  INFO(help);
  CHECK(absl::StrContains(help, "of data [required]\n"));
  CHECK(absl::StrContains(help, "as others say\n"));
  std::string program = "test";
  char* argv[] = {program.data()};
  const absl::Status missed = line.ParseQuietly(1, argv);
  CHECK(absl::IsInvalidArgument(missed));
  CHECK(absl::StrContains(missed.message(), "--directory is required"));
}

}  // namespace recon
