#include "common/cli/help_format.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace recon {
namespace {

constexpr size_t kTextColumn = 30;
constexpr size_t kColumnsMax = 100;

// `left`, and `text` to its right, broken between words; below it if `left` is long.
std::string TwoColumns(const std::string& left, const std::string& text) {
  std::string out = absl::StrCat("  ", left);
  size_t column = out.size();
  if (column + 2 > kTextColumn) {
    out += "\n";
    column = 0;
  }
  bool begun = false;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (begun && column + 1 + word.size() > kColumnsMax) {
      out += "\n";
      column = 0;
      begun = false;
    }
    const size_t blanks = begun ? 1 : kTextColumn - column;
    absl::StrAppend(&out, std::string(blanks, ' '), word);
    column += blanks + word.size();
    begun = true;
  }
  if (!begun && column == 0) out.pop_back();
  return out + "\n";
}

// What a flag takes, for people; nothing for those that take nothing.
std::string ValueName(const CLI::Option& option) {
  if (option.get_type_size() == 0) return "";
  // The type's name, perhaps with what a check adds: "UINT:UINT in [1 - 64]", "TEXT:{exact,sampled}".
  const std::string whole = option.get_type_name();
  const size_t colon = whole.find(':');
  const std::string type = colon == std::string::npos ? whole : whole.substr(colon + 1);
  const size_t braces = type.find('{');
  if (braces != std::string::npos) return type.substr(braces);
  const size_t range = type.find(" in [");
  const std::string bare = type.substr(0, range);
  const std::string name = bare == "UINT" || bare == "INT" ? "N" : bare == "FLOAT" ? "X" : bare;
  return range == std::string::npos ? name : absl::StrCat(name, type.substr(range));
}

}  // namespace

HelpFormat::HelpFormat() {
  label("SUBCOMMAND", "VERB");
  label("OPTIONS", "FLAGS");
  label("Positionals", "Arguments");
}

std::string HelpFormat::make_option(const CLI::Option* option, bool positional) const {
  std::string left = make_option_name(option, positional);
  const std::string value = ValueName(*option);
  if (!positional && !value.empty()) absl::StrAppend(&left, " ", value);
  std::string text = option->get_description();
  if (!option->get_default_str().empty() && option->get_type_size() != 0) {
    const bool boolean = option->get_type_name() == "BOOLEAN";
    const std::string shown = option->get_default_str();
    absl::StrAppend(&text, " [default ", !boolean ? shown : shown == "1" ? "true" : "false", "]");
  }
  if (option->get_required()) text += " [required]";
  if (!option->get_envname().empty()) absl::StrAppend(&text, " (", option->get_envname(), ")");
  return TwoColumns(left, text);
}

// One empty line before each group: CLI11 has two between groups.
std::string HelpFormat::make_group(std::string heading, bool positional,
                                   std::vector<const CLI::Option*> options) const {
  return CLI::Formatter::make_group(std::move(heading), positional, std::move(options)).substr(1);
}

std::string HelpFormat::make_positionals(const CLI::App* app) const {
  const std::string text = CLI::Formatter::make_positionals(app);
  return text.empty() ? text : text + "\n";
}

std::string HelpFormat::make_usage(const CLI::App* app, std::string name) const {
  return CLI::Formatter::make_usage(app, std::move(name)) + "\n";
}

std::string HelpFormat::make_subcommand(const CLI::App* verb) const {
  return TwoColumns(verb->get_display_name(true), verb->get_description());
}

std::string HelpFormat::make_description(const CLI::App* app) const {
  return absl::StrCat(app->get_description(), "\n");
}

}  // namespace recon
