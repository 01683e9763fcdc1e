#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"

namespace recon {

// Where the value of a flag goes, and its default. T is std::string, std::vector<std::string> (a flag that
// may be given more than once), bool, a number or float.
class FlagField {
 public:
  // The flag's value goes to `*field`, which has the default. `check` sees it once all flags are read; its
  // errors begin with the flag's name. A bool is a flag without a value: given or not.
  template <typename T>
  FlagField(T* field, std::common_type_t<std::function<absl::Status(const T&)>> check = nullptr)  // NOLINT
      : add_(AddOption(field, !std::is_same_v<T, bool>)) {
    if (check) take_ = [field, check = std::move(check)] { return check(*field); };
  }

  // The value goes to `take`, once all flags are read. `take` returns nothing, or a status whose text begins
  // with the flag's name.
  template <typename T, typename Take>
  static FlagField To(T otherwise, Take take) {
    const auto value = std::make_shared<T>(std::move(otherwise));
    FlagField field(value.get());
    field.take_ = [value, take = std::move(take)]() -> absl::Status {
      if constexpr (std::is_void_v<decltype(take(*value))>) {
        take(*value);
        return absl::OkStatus();
      } else {
        return take(*value);
      }
    };
    return field;
  }

  // `*target` gets what `parse`, whose errors begin with the flag's name, makes of the text.
  template <typename T, typename Parse>
  static FlagField Parsed(const std::string& otherwise, T* target, Parse parse) {
    return To<std::string>(otherwise, [target, parse = std::move(parse)](const std::string& text) {
      absl::StatusOr<T> value = parse(text);
      if (value.ok()) *target = *std::move(value);
      return value.status();
    });
  }

  // A bool that has a value: --shared-memory false.
  static FlagField TrueOrFalse(bool* field) {
    FlagField value(field);
    value.add_ = AddOption(field, /*has_value=*/true);
    return value;
  }

 private:
  friend class FlagTable;
  using Add = std::function<CLI::Option*(CLI::App* app, const std::string& name, const std::string& help)>;

  template <typename T>
  static Add AddOption(T* field, bool has_value);

  Add add_;
  std::function<absl::Status()> take_;  // May be null.
};

// One flag: a row of a program's table.
struct Flag {
  std::string name;  // "--snapshot-dir"
  FlagField field;
  std::string help;
  // What its value must be, beyond its type.
  std::optional<CLI::Validator> check = std::nullopt;
  // The environment variable that may have its value; EnvironmentName() unless the row says another.
  std::string environment = "";  // NOLINT(readability-redundant-string-init): rows of three stay complete.
  enum class Need { kMayBeGiven, kMustBeGiven, kHasNoDefaultOfItsOwn };
  Need need = Need::kMayBeGiven;  // Only then --help shows the default.
};

// Flags under one heading of --help.
struct FlagGroup {
  std::string heading;
  std::vector<Flag> flags;
};

// "RECON_SNAPSHOT_DIR" of "--snapshot-dir".
std::string EnvironmentName(const std::string& flag);

// The row of --log-level, which programs that log have.
Flag LogLevelFlag(std::string* level);

// The flags of a program, each declared once.
//
//   FlagTable table({{"Process", {{"--threads", &flags.threads, "CPU threads", CLI::Range(1, 64)}}}});
//   table.AddTo(line.app());
//   if (const std::optional<int> code = line.Parse(argc, argv)) return *code;
//   if (const absl::Status taken = table.Take(); !taken.ok()) return line.Refuse(taken);
//
// One thread. What fields point to must outlive Take().
class FlagTable {
 public:
  explicit FlagTable(std::vector<FlagGroup> groups) : groups_(std::move(groups)) {}

  enum class Environment { kRead, kIgnored };
  // Makes options of the rows, below their headings. This must outlive the parsing.
  void AddTo(CLI::App* app, Environment environment = Environment::kRead) const;
  // After the parsing: checks values and gives them to those who take them, in the order of the rows. The
  // first error.
  absl::Status Take() const;

 private:
  const std::vector<FlagGroup> groups_;
};

}  // namespace recon
