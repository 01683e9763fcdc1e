#include "common/cli/command_line.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"
#include "common/base/plain_text.h"
#include "common/base/regular_file.h"
#include "common/cli/help_format.h"
#include "common/cli/suggest.h"
#include "common/cli/toml.h"
#include "common/cli/version.h"

namespace recon {
namespace {

constexpr int kWrongFlags = 2;
// Of a --config file: what is longer is another file.
constexpr size_t kConfigBytesMax = 1 << 20;

std::vector<std::string> NamesOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) names.push_back(option->get_name());
  }
  return names;
}

std::vector<std::string> VerbsOf(const CLI::App& app) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (!verb->get_group().empty()) verbs.push_back(verb->get_name());
  }
  return verbs;
}

// A verb's own --help stands in no group until it is put into one.
void GroupHelp(CLI::App* app) {
  if (app->get_help_ptr() != nullptr) app->get_help_ptr()->group("General");
  for (CLI::App* verb : app->get_subcommands({})) {
    if (!verb->get_group().empty()) verb->group("Verbs");  // One without a group is not shown.
    GroupHelp(verb);
  }
}

// "--batch" of "--batch many: ..." and of "--batch: ...".
std::string FlagOf(absl::string_view text) {
  if (!absl::StartsWith(text, "--")) return "";
  return std::string(text.substr(0, text.find_first_of(" :=,")));
}

// What CLI11's name of a type means, as far as it says more than "text".
std::string Expected(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (absl::StartsWith(type, "UINT")) return "expected a whole number";
  if (absl::StartsWith(type, "INT")) return "expected a whole number, which may be negative";
  if (absl::StartsWith(type, "FLOAT")) return "expected a number";
  return type.empty() || absl::StartsWith(type, "BOOLEAN") ? "expected true or false"
                                                           : absl::StrCat("expected ", type);
}

}  // namespace

// Reads what --config names. CLI11 asks it for the settings; it keeps the lines.
class CommandLine::ConfigFile : public CLI::ConfigBase {
 public:
  explicit ConfigFile(const CLI::App* app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream&) const override {
    const std::string path = app_->get_config_ptr()->results().back();
    const absl::StatusOr<std::string> text = ReadRegularFile(path, kConfigBytesMax);
    if (!text.ok()) throw CLI::ConfigError(absl::StrCat("--config ", text.status().message()));
    const absl::StatusOr<std::vector<TomlSetting>> settings = ParseToml(*text);
    if (!settings.ok()) throw CLI::ConfigError(absl::StrCat(path, ":", settings.status().message()));
    std::vector<CLI::ConfigItem> found;
    for (const TomlSetting& setting : *settings) {
      const std::string where = absl::StrCat(path, ":", setting.line, ": ");
      const std::string flag = absl::StrCat("--", setting.name);
      const CLI::Option* option = app_->get_option_no_throw(flag);
      if (option == nullptr || !option->get_configurable()) {
        std::vector<std::string> names;
        for (const CLI::Option* known : app_->get_options()) {
          if (known->get_configurable()) names.push_back(known->get_name().substr(2));
        }
        throw CLI::ConfigError(
            absl::StrCat(where, setting.name, " is no setting", DidYouMean(setting.name, names)));
      }
      where_[flag] = where;
      CLI::ConfigItem item;
      item.name = setting.name;
      item.inputs = setting.values;
      found.push_back(std::move(item));
    }
    return found;
  }

  // "job.toml:3: ", or nothing.
  std::string Where(const std::string& flag) const {
    const auto found = where_.find(flag);
    return found == where_.end() ? "" : found->second;
  }

 private:
  const CLI::App* const app_;
  mutable std::map<std::string, std::string> where_;  // By flag; CLI11 reads through a const method.
};

CommandLine::CommandLine(const std::string& program, const std::string& description)
    : program_(program), app_(absl::StrCat(program, ": ", description)) {
  app_.formatter(std::make_shared<HelpFormat>());
  app_.set_help_flag("--help,-h", "show this");
  app_.set_version_flag("--version", absl::StrCat(program, " ", Version()), "show the version");
  app_.get_version_ptr()->group("General");
}

CommandLine::~CommandLine() = default;

void CommandLine::AddConfigFile() {
  config_ = std::make_shared<ConfigFile>(&app_);
  app_.config_formatter(config_);
  app_.allow_config_extras(CLI::config_extras_mode::error);
  app_.set_config("--config", "", "TOML file with the same names as the flags")
      ->group("General")
      // CLI11 opens it before our reader is asked, and would wait for a pipe's other end.
      ->check([](const std::string& path) {
        const absl::Status found = CheckRegularFile(path);
        return absl::IsInvalidArgument(found) ? std::string(found.message()) : std::string();
      });
}

const CLI::App* CommandLine::Deepest() const {
  const CLI::App* app = &app_;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

std::string CommandLine::SourceOf(const std::string& flag) const {
  const CLI::Option* option = flag.empty() ? nullptr : Deepest()->get_option_no_throw(flag);
  if (option == nullptr) return "";
  for (const std::string& argument : arguments_) {
    if (argument == flag || absl::StartsWith(argument, absl::StrCat(flag, "="))) return "";
  }
  const std::string in_file = config_ == nullptr ? "" : config_->Where(flag);
  if (!in_file.empty()) return in_file;
  const std::string& variable = option->get_envname();
  return variable.empty() || getenv(variable.c_str()) == nullptr ? "" : absl::StrCat(variable, ": ");
}

std::string CommandLine::UnknownWord(const CLI::ParseError& error) const {
  std::string path;
  for (const CLI::App* app = &app_;; app = app->get_subcommands().front()) {
    if (app != &app_) absl::StrAppend(&path, app->get_name(), ": ");
    const std::vector<std::string> unknown = app->remaining();
    const auto flag = std::find_if(unknown.begin(), unknown.end(),
                                   [](const std::string& word) { return absl::StartsWith(word, "-"); });
    if (flag != unknown.end()) {
      const std::string name = flag->substr(0, flag->find('='));
      return absl::StrCat(path, "unknown flag ", name, DidYouMean(name, NamesOf(*app)));
    }
    const std::vector<std::string> verbs = VerbsOf(*app);
    if (!unknown.empty() && !verbs.empty()) {
      return absl::StrCat(path, "unknown verb ", unknown.front(), DidYouMean(unknown.front(), verbs));
    }
    if (!unknown.empty()) {
      return absl::StrCat(path, "unexpected argument ", unknown.front(),
                          DidYouMean(unknown.front(), NamesOf(*app)));
    }
    if (!app->get_subcommands().empty()) continue;
    if (!verbs.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
      return absl::StrCat(path, "expected a verb: ", absl::StrJoin(verbs, ", "));
    }
    return "";
  }
}

std::string CommandLine::Explain(const CLI::ParseError& error) const {
  // What nobody knows comes first: all other errors may follow from it.
  std::string text = UnknownWord(error);
  if (!text.empty()) return text;
  text = error.what();
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "Could not convert: ")) {
    const std::string flag = FlagOf(rest);
    const CLI::Option* option = flag.empty() ? nullptr : Deepest()->get_option_no_throw(flag);
    const std::string value(rest.substr(std::min(rest.find(" = ") + 3, rest.size())));
    if (option != nullptr) text = absl::StrCat(flag, " ", value, ": ", Expected(*option));
  }
  // "--batch: Value 0 not in range 1 to 64".
  const std::vector<std::string> range = absl::StrSplit(text, ": Value ");
  const std::vector<std::string> halves = absl::StrSplit(range.back(), " not in range ");
  if (range.size() == 2 && halves.size() == 2) {
    text = absl::StrCat(range[0], " ", halves[0], ": expected a number from ", halves[1]);
  }
  const bool missing = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
  if (missing && absl::EndsWith(text, " missing")) text = absl::StrCat(FlagOf(text), " has no value");
  return SourceOf(FlagOf(text)) + text;
}

std::optional<int> CommandLine::Parse(int argc, char** argv) {
  arguments_.assign(argv, argv + argc);
  GroupHelp(&app_);
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app_.exit(error);
    std::cerr << program_ << ": " << EscapeControls(Explain(error)) << "\n";
    return kWrongFlags;
  }
  return std::nullopt;
}

absl::Status CommandLine::ParseQuietly(int argc, char** argv) {
  arguments_.assign(argv, argv + argc);
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(Explain(error));
  }
  return absl::OkStatus();
}

std::map<std::string, std::string> CommandLine::ValuesOf(const std::vector<std::string>& headings) const {
  std::map<std::string, std::string> values;
  for (const CLI::Option* option : app_.get_options()) {
    if (std::find(headings.begin(), headings.end(), option->get_group()) == headings.end()) continue;
    const bool given = option->count() > 0;
    std::string value = given ? absl::StrJoin(option->results(), " ") : option->get_default_str();
    if (option->get_expected_max() == 0) value = given && value != "false" ? "on" : "off";
    values[option->get_name()] = value == "[]" ? "" : value;  // CLI11's text of an empty list.
  }
  return values;
}

absl::Status CommandLine::TakeDefaults(const std::vector<std::pair<std::string, std::string>>& values,
                                       const std::vector<std::string>& headings) {
  std::vector<CLI::Option*> open;  // Nobody has said anything of them.
  for (CLI::Option* option : app_.get_options()) {
    if (option->count() == 0) open.push_back(option);
  }
  for (const auto& [name, value] : values) {
    const std::string flag = absl::StrCat("--", name);
    CLI::Option* const option = app_.get_option_no_throw(flag);
    if (option == nullptr ||
        std::find(headings.begin(), headings.end(), option->get_group()) == headings.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " is no setting of a job", DidYouMean(flag, NamesOf(app_))));
    }
    if (std::find(open.begin(), open.end(), option) == open.end()) continue;
    try {
      if (option->count() > 0 && option->get_expected_max() <= 1) option->clear();
      option->add_result(value);
      option->run_callback();
    } catch (const CLI::ParseError& error) {
      return absl::InvalidArgumentError(Explain(error));
    }
  }
  return absl::OkStatus();
}

int CommandLine::Refuse(const absl::Status& status) const {
  const std::string message(status.message());
  std::cerr << program_ << ": " << EscapeControls(SourceOf(FlagOf(message)) + message) << "\n";
  return kWrongFlags;
}

}  // namespace recon
