#include "common/cli/toml.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"

namespace recon {
namespace {

constexpr size_t kShownBytesMax = 60;

bool IsNameByte(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_'; }

// A cursor over the text. Every method that reads leaves it behind what was read.
class Parser {
 public:
  explicit Parser(absl::string_view text) : text_(text) {}

  absl::StatusOr<std::vector<TomlSetting>> Parse();

 private:
  absl::StatusOr<TomlSetting> ReadSetting();
  absl::StatusOr<std::string> ReadName();
  absl::Status ReadArray(TomlSetting* setting);
  absl::StatusOr<std::string> ReadValue(const std::string& name);
  absl::StatusOr<std::string> ReadString(char quote);
  absl::StatusOr<std::string> ReadBare(const std::string& name);

  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool AtEnd() const { return at_ >= text_.size(); }
  void SkipBlanks();
  // Blanks, comments and ends of lines.
  void SkipToNext();
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(line_, ": ", what));
  }

  const absl::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

void Parser::SkipBlanks() {
  while (Peek() == ' ' || Peek() == '\t' || Peek() == '\r') ++at_;
}

void Parser::SkipToNext() {
  while (true) {
    SkipBlanks();
    if (Peek() == '#') at_ = std::min(text_.find('\n', at_), text_.size());
    if (Peek() != '\n') return;
    ++at_;
    ++line_;
  }
}

absl::StatusOr<std::string> Parser::ReadName() {
  if (Peek() == '"' || Peek() == '\'') return ReadString(Peek());
  const size_t begin = at_;
  while (IsNameByte(Peek())) ++at_;
  if (at_ == begin) return Error("expected NAME = VALUE");
  return std::string(text_.substr(begin, at_ - begin));
}

absl::StatusOr<std::string> Parser::ReadString(char quote) {
  if (absl::StartsWith(text_.substr(at_), std::string(3, quote))) {
    return Error("a string of several lines: expected one line");
  }
  std::string value;
  for (++at_; !AtEnd() && Peek() != '\n'; ++at_) {
    const char c = Peek();
    if (c == quote) {
      ++at_;
      return value;
    }
    if (c != '\\' || quote == '\'') {
      value += c;
      continue;
    }
    ++at_;
    const absl::string_view escapes = "\"\\nt";
    const size_t known = escapes.find(Peek());
    if (AtEnd() || known == absl::string_view::npos) return Error("expected \\\", \\\\, \\n or \\t");
    value += "\"\\\n\t"[known];
  }
  return Error("a string without its closing quote");
}

absl::StatusOr<std::string> Parser::ReadBare(const std::string& name) {
  const size_t begin = at_;
  while (!AtEnd() && !absl::StrContains(",]#\n", absl::string_view(&text_[at_], 1))) ++at_;
  const std::string value(absl::StripAsciiWhitespace(text_.substr(begin, at_ - begin)));
  if (value.empty()) return Error(absl::StrCat(name, " has no value"));
  const std::string number = absl::StrReplaceAll(value, {{"_", ""}});
  double parsed = 0;
  if (value == "true" || value == "false" || absl::SimpleAtod(number, &parsed)) return number;
  return Error(absl::StrCat(name, " = ", value.substr(0, kShownBytesMax),
                            ": expected a number, true or false; text has quotes: \"",
                            value.substr(0, kShownBytesMax), "\""));
}

absl::StatusOr<std::string> Parser::ReadValue(const std::string& name) {
  if (Peek() == '"' || Peek() == '\'') return ReadString(Peek());
  if (Peek() == '{' || Peek() == '[') {
    return Error(absl::StrCat(name, ": expected a string, a number, true, false or an array of those"));
  }
  return ReadBare(name);
}

absl::Status Parser::ReadArray(TomlSetting* setting) {
  ++at_;
  while (true) {
    SkipToNext();
    if (AtEnd()) return Error(absl::StrCat(setting->name, ": an array without its closing bracket"));
    if (Peek() == ']') break;
    RECON_ASSIGN_OR_RETURN(std::string value, ReadValue(setting->name));
    setting->values.push_back(std::move(value));
    SkipToNext();
    if (Peek() == ',') {
      ++at_;
    } else if (!AtEnd() && Peek() != ']') {
      return Error(absl::StrCat(setting->name, ": expected , or ] in the array"));
    }
  }
  ++at_;
  if (setting->values.empty()) return Error(absl::StrCat(setting->name, ": the array is empty"));
  return absl::OkStatus();
}

absl::StatusOr<TomlSetting> Parser::ReadSetting() {
  TomlSetting setting;
  setting.line = line_;
  if (Peek() == '[') return Error("a table: flags have no tables, their names stand alone");
  RECON_ASSIGN_OR_RETURN(setting.name, ReadName());
  SkipBlanks();
  if (Peek() != '=') return Error(absl::StrCat("expected = after ", setting.name));
  ++at_;
  SkipBlanks();
  if (Peek() == '[') {
    RECON_RETURN_IF_ERROR(ReadArray(&setting));
  } else {
    RECON_ASSIGN_OR_RETURN(std::string value, ReadValue(setting.name));
    setting.values.push_back(std::move(value));
  }
  SkipBlanks();
  if (!AtEnd() && Peek() != '#' && Peek() != '\n') {
    const absl::string_view rest = text_.substr(at_, text_.find('\n', at_) - at_);
    return Error(absl::StrCat("after the value of ", setting.name, " there is more: ",
                              absl::StripAsciiWhitespace(rest.substr(0, kShownBytesMax))));
  }
  return setting;
}

absl::StatusOr<std::vector<TomlSetting>> Parser::Parse() {
  std::vector<TomlSetting> settings;
  for (SkipToNext(); !AtEnd(); SkipToNext()) {
    RECON_ASSIGN_OR_RETURN(TomlSetting setting, ReadSetting());
    const auto same = std::find_if(settings.begin(), settings.end(),
                                   [&](const TomlSetting& before) { return before.name == setting.name; });
    if (same != settings.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(setting.line, ": ", setting.name, " has been given before, in line ", same->line));
    }
    settings.push_back(std::move(setting));
  }
  return settings;
}

}  // namespace

absl::StatusOr<std::vector<TomlSetting>> ParseToml(absl::string_view text) { return Parser(text).Parse(); }

}  // namespace recon
